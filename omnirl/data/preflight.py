"""What must hold of the data files before a run takes any device: column by column, with pyarrow alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnirl.data import store
from omnirl.data.sample import PLACEHOLDERS
from omnirl.errors import InvalidInput, OmniError, Problem
from omnirl.reward import score

if TYPE_CHECKING:
    import pyarrow as pa

_MODALITY = {"images": "image", "audios": "audio", "videos": "video"}
_PATH_FIELDS = ("path", "image", "audio", "video")
_SHOWN = 3


@dataclass(slots=True)
class _Findings:
    """What one file's batches showed; rows are numbered from 0."""

    path: Path
    key: str
    rows: int = 0
    first: dict[str, int] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    media: dict[str, int] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def add(self, what: str, rows: Sequence[int]) -> None:
        if rows:
            self.first.setdefault(what, rows[0])
            self.count[what] = self.count.get(what, 0) + len(rows)

    def problem(self, code: str, message: str, *, row: int | None = None, hint: str | None = None) -> Problem:
        where = str(self.path) if row is None else f"{self.path}:row {row}"
        return Problem(code, message, key=self.key, where=where, hint=hint)


def check_files(
    train: Sequence[str],
    val: Sequence[str],
    probe: Sequence[str] = (),
    *,
    modalities: Sequence[str],
    prompts_per_step: int,
    scorer: str | None = None,
) -> tuple[Problem, ...]:
    """Everything wrong with the data files of a run; empty when they are sound.

    Args:
        train, val, probe: parquet files; relative ones start at the working folder.
        modalities: what the task declares; media beyond it are a warning.
        prompts_per_step: the training files must have at least as many rows together.
        scorer: the name of a built-in scorer whose labels the ground truths must be; None leaves them unread.
    """
    problems: list[Problem] = []
    train_rows = 0
    for key, files in (("data.train", train), ("data.val", val), ("data.probe", probe)):
        if not files and key != "data.probe":
            problems.append(Problem("data-none", "no data file is given", key=key, hint="`omnirl data prepare` makes them"))
        for name in files:
            findings = _Findings(Path(name).expanduser(), key)
            try:
                facts = store.inspect(findings.path)
                _scan(findings, facts.columns)
            except OmniError as error:
                problems.append(Problem("data-unreadable", error.message, key=key, where=name, hint=error.hint))
                continue
            train_rows += facts.rows if key == "data.train" else 0
            problems.extend(_judge(findings, modalities, scorer))
    readable = not any(problem.key == "data.train" and problem.code == "data-unreadable" for problem in problems)
    if train and readable and train_rows < prompts_per_step:
        problems.append(
            Problem(
                "data-too-few-rows",
                f"dataset smaller than batch: {train_rows} rows, {prompts_per_step} prompts a step, so not one step",
                key="data.train",
                hint=f"--set 'batch.prompts = {train_rows}', or add data",
            )
        )
    return tuple(problems)


def _judge(findings: _Findings, modalities: Sequence[str], scorer: str | None) -> Iterator[Problem]:
    for what, first in findings.first.items():
        code, _, message = what.partition(": ")
        yield findings.problem(code, f"{message} ({findings.count[what]} of {findings.rows} rows)", row=first)
    yield from _absent(findings)
    for modality in sorted(findings.used - set(modalities)):
        yield Problem(
            "data-undeclared-modality",
            f"rows carry {modality} items, and the task declares only {', '.join(modalities)}",
            severity="warning",
            key="task.modalities",
            where=str(findings.path),
        )
    if scorer is None:
        return
    bad: list[tuple[int, InvalidInput]] = []
    for label, row in findings.labels.items():
        try:
            score.check_label(scorer, label)
        except InvalidInput as error:
            bad.append((row, error))
    if bad:
        row, error = bad[0]
        rest = f", and {len(bad) - 1} other labels" if len(bad) > 1 else ""
        yield findings.problem("data-label", f"{error.message}{rest}", row=row, hint=error.hint)


def _absent(findings: _Findings) -> Iterator[Problem]:
    faults: dict[str, list[tuple[str, int]]] = {}
    for name, row in findings.media.items():
        fault = _media_fault(name)
        if fault:
            faults.setdefault(fault, []).append((name, row))
    for fault, found in faults.items():
        names = ", ".join(f"`{name}`" for name, _ in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        hint = "convert the data again on this machine: paths are absolute and must exist on every node"
        yield findings.problem("data-media", f"media {fault}: {names}{more}", row=found[0][1], hint=hint)


def _media_fault(name: str) -> str:
    path = Path(name)
    if not path.is_absolute():
        return "with a relative path"
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return "missing"
    return "" if path.is_file() and status.st_size else "empty or no file"


def _scan(findings: _Findings, columns: Sequence[str]) -> None:
    media = [column for column in PLACEHOLDERS if column in columns]
    for batch in store.read_batches(findings.path, ["prompt", "reward_model", *media]):
        _scan_prompt(findings, batch, media)
        _scan_ground_truth(findings, batch)
        findings.rows += batch.num_rows


def _scan_prompt(findings: _Findings, batch: pa.RecordBatch, media: Sequence[str]) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    prompt = batch.column("prompt")
    if not _is_list(prompt) or not pa.types.is_struct(prompt.type.value_type):
        raise InvalidInput(f"`prompt` is {prompt.type}, not a list of messages", hint="`omnirl data prepare` writes it so")
    if prompt.type.value_type.get_field_index("content") < 0:
        raise InvalidInput("the messages of `prompt` have no `content`", hint="`omnirl data prepare` writes it so")
    owner = pc.list_parent_indices(prompt)
    content = pc.struct_field(pc.list_flatten(prompt), "content")
    if not (pa.types.is_string(content.type) or pa.types.is_large_string(content.type)):
        raise InvalidInput(f"the content of `prompt` is {content.type}, not text", hint="`omnirl data prepare` writes it so")
    written = pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(content)), 0)
    said = _sum_by_row(owner, pc.cast(pc.fill_null(written, False), pa.int64()), batch.num_rows)
    findings.add("data-prompt: the prompt is empty", [findings.rows + row for row, n in enumerate(said) if not n])
    for column, mark in PLACEHOLDERS.items():
        marks = _sum_by_row(owner, pc.fill_null(pc.count_substring(content, mark), 0), batch.num_rows)
        items = _scan_media(findings, batch.column(column), column) if column in media else [0] * batch.num_rows
        if marks == items:
            continue
        wrong = [row for row in range(batch.num_rows) if marks[row] != items[row]]
        row = wrong[0]
        example = findings.first.get(f"placeholders {column}")
        if example is None:
            findings.first_mismatch(column, row, marks[row], items[row])


def _scan_media(findings: _Findings, items: pa.Array, column: str) -> list[int]:
    """Items per row; notes each distinct path, and items with neither a path nor bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(items.type):
        return [0] * len(items)
    if not _is_list(items):
        raise InvalidInput(f"`{column}` is {items.type}, not a list", hint="`omnirl data prepare` writes it so")
    owner = pc.list_parent_indices(items)
    return _count(owner, len(items))
