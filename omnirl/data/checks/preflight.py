"""What must hold of a run's data files before it takes any device."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from omnirl.data import store
from omnirl.data.checks.columns import Scan, is_preference, required, scan
from omnirl.data.sample import PLACEHOLDERS
from omnirl.errors import InvalidInput, OmniError, Problem
from omnirl.reward import score

_SHOWN = 3
_CONVERT = "convert the data again with `omnirl data prepare`"


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
        scorer: the recipe's scorer; with a built-in one every ground truth must be a label that it can compare with.
    """
    problems: list[Problem] = []
    train_rows: int | None = 0
    for key, files in (("data.train", train), ("data.val", val), ("data.probe", probe)):
        if not files and key != "data.probe":
            problems.append(
                Problem("data-none", "no data file is given", key=key, hint="`omnirl data prepare` makes them")
            )
        for name in files:
            path = Path(name).expanduser()
            try:
                facts = store.inspect(path, required=())
                store.inspect(path, required=required(facts.columns))
                found = scan(path, labels=not is_preference(facts.columns))
            except OmniError as error:
                problems.append(Problem("data-unreadable", error.message, key=key, where=name, hint=error.hint))
                train_rows = None if key == "data.train" else train_rows
                continue
            if key == "data.train" and train_rows is not None:
                train_rows += facts.rows
            problems.extend(_judge(found, key, name, modalities, scorer))
    if train and train_rows is not None and train_rows < prompts_per_step:
        problems.append(
            Problem(
                "data-too-few-rows",
                f"dataset smaller than batch: {train_rows} rows make no step of {prompts_per_step} prompts",
                key="data.train",
                hint=f"--set 'batch.prompts = {train_rows}', or give more data",
            )
        )
    return tuple(problems)


def _judge(found: Scan, key: str, name: str, modalities: Sequence[str], scorer: str | None) -> Iterator[Problem]:
    def at(row: int) -> str:
        return f"{name}:row {row}"

    for code, what, rows in (
        ("data-prompt-empty", "the prompt is empty", found.empty_prompts),
        ("data-label-empty", "the ground truth is empty", found.empty_labels),
        *(
            ("data-media-empty", f"an item of `{column}` has neither a path nor bytes", found.hollow[column])
            for column in found.hollow
        ),
    ):
        if rows.count:
            yield Problem(
                code, f"{what} ({_share(rows.count, found.rows)})", key=key, where=at(rows.first), hint=_CONVERT
            )
    for column, mismatch in found.mismatches.items():
        if mismatch.count:
            yield Problem(
                "data-placeholders",
                f"{mismatch.marks} `{PLACEHOLDERS[column]}` in the prompt and {mismatch.items} in `{column}` "
                f"({_share(mismatch.count, found.rows)})",
                key=key,
                where=at(mismatch.first),
                hint="one placeholder stands for each media item, in order",
            )
    yield from _media(found, key, name)
    yield from _labels(found, key, name, scorer)
    for column in sorted(found.used):
        modality = column.removesuffix("s")
        if modality not in modalities:
            yield Problem(
                "data-undeclared-modality",
                f"rows carry `{column}`, and the task declares only {', '.join(modalities)}",
                severity="warning",
                key="task.modalities",
                where=name,
            )


def _media(found: Scan, key: str, name: str) -> Iterator[Problem]:
    faults: dict[str, list[tuple[str, int]]] = {}
    for path, row in sorted(found.media.items(), key=lambda item: item[1]):
        fault = media_fault(path)
        if fault:
            faults.setdefault(fault, []).append((path, row))
    for fault, items in faults.items():
        names = ", ".join(f"`{path}`" for path, _ in items[:_SHOWN])
        more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        yield Problem(
            "data-media",
            f"{_share(len(items), len(found.media), 'media file')} {fault}: {names}{more}",
            key=key,
            where=f"{name}:row {items[0][1]}",
            hint="media paths are absolute and must exist on every node; " + _CONVERT,
        )


def media_fault(name: str) -> str:
    """What is wrong with the path of a media file; empty when there is a file with something in it."""
    path = Path(name)
    if not path.is_absolute():
        return "without an absolute path"
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return "missing"
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    return "" if status.st_size else "empty"


def _labels(found: Scan, key: str, name: str, scorer: str | None) -> Iterator[Problem]:
    if scorer not in score.SCORERS:
        return
    bad: list[tuple[int, InvalidInput]] = []
    for label, row in found.labels.items():
        try:
            score.check_label(scorer, label)
        except InvalidInput as error:
            bad.append((row, error))
    if bad:
        row, worst = bad[0]
        rest = f", and {len(bad) - 1} other labels" if len(bad) > 1 else ""
        yield Problem("data-label", worst.message + rest, key=key, where=f"{name}:row {row}", hint=worst.hint)


def _share(part: int, whole: int, what: str = "row") -> str:
    return f"{part} of {whole} {what}{'' if whole == 1 else 's'}"
