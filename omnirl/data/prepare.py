"""Converting a source to parquet: every split is written and read back before any file gets its name."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.data import store
from omnirl.data.sample import Drop, Sample
from omnirl.data.sources import Options, Source
from omnirl.errors import InvalidInput, UsageMistake
from omnirl.files import disk_faults, write_json

SCHEMA = "omnirl/data-report/1"


@dataclass(slots=True)
class Split:
    """What became of one split's records."""

    input: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    first_drop: dict[str, str] = field(default_factory=dict)
    output: Path | None = None
    sha256: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "input": self.input,
            "kept": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "first_drop": dict(sorted(self.first_drop.items())),
            "answers": dict(sorted(self.answers.items())),
            "audio": {},
            "output": None if self.output is None else str(self.output),
            "sha256": self.sha256,
        }


@dataclass(slots=True)
class Report:
    """The outcome of a conversion; `shared` counts equal prompts (media included) between two splits."""

    source: str
    splits: dict[str, Split] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The document `omnirl/data-report/1`."""
        return {
            "schema": SCHEMA,
            "source": self.source,
            "dry_run": self.dry_run,
            "splits": {name: split.as_dict() for name, split in self.splits.items()},
            "shared": self.shared,
        }


def prepare(
    source: Source,
    *,
    input: Path | None,
    output: Path,
    options: Options | None = None,
    dry_run: bool = False,
    advance: Callable[[int], object] | None = None,
) -> Report:
    """Convert `source` into `output`/<split>.parquet and `output`/report.json.

    A dry run does the whole conversion in a temporary folder and throws it away. `advance` is called with the number
    of records read since its last call.

    Raises:
        UsageMistake: the source needs `input` and none is given.
        InvalidInput: the input cannot be read, or a split keeps no row; no file is left behind.
        EnvironmentLacks: no room or no permission in `output`.
    """
    options = options or Options()
    _check_input(source, input)
    output = output.absolute()
    with disk_faults(output):
        there = next(path for path in (output, *output.parents) if path.exists())
    if not there.is_dir():
        raise InvalidInput(f"`{there}` is a file, not a folder", hint="give a folder as `--output`", where="--output")
    if not dry_run:
        return _convert(source, input, output, options, advance)
    with tempfile.TemporaryDirectory(prefix="omnirl-dry-run-") as folder:
        report = _convert(source, input, Path(folder), options, advance)
    report.dry_run = True
    for name, split in report.splits.items():
        split.output = output / f"{name}.parquet"
    return report


def _convert(
    source: Source, input: Path | None, output: Path, options: Options, advance: Callable[[int], object] | None
) -> Report:
    report = Report(source.name)
    seen: dict[str, set[int]] = {}
    with ExitStack() as undo:
        _make_folder(output, undo)
        staged: list[store.Staged] = []
        for name, stream in source.load()(input, output, options):
            split = report.splits.setdefault(name, Split())
            prompts = seen.setdefault(name, set())
            target = output / f"{name}.parquet"
            one = store.stage_parquet(target, _kept(stream, split, prompts, advance))
            undo.callback(one.discard)
            _refuse_empty(name, split)
            split.output, split.sha256 = target, one.written.sha256
            staged.append(one)
        if not staged:
            raise InvalidInput(f"`{source.name}` gave no split at all")
        report.shared = _shared(seen)
        with disk_faults(output):
            (output / "report.json").unlink(missing_ok=True)
        for one in staged:
            one.commit()
        undo.pop_all()
        write_json(output / "report.json", report.as_dict())
    return report


def _check_input(source: Source, input: Path | None) -> None:
    if not source.needs_input:
        return
    if input is None:
        raise UsageMistake(
            f"`{source.name}` is converted from files, and no input folder is given",
            hint=f"`omnirl data prepare {source.name} --input DIR --output DIR`, where the input holds {source.layout}",
            where="--input",
        )
    if not input.is_dir():
        what = "is a file, not a folder" if input.exists() else "does not exist"
        raise InvalidInput(f"`{input}` {what}", hint=f"give the folder that holds {source.layout}", where="--input")


def _make_folder(output: Path, undo: ExitStack) -> None:
    """Create `output`; when the conversion fails, the folders made for it go again unless something is in them."""
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    with disk_faults(output):
        output.mkdir(parents=True, exist_ok=True)
    for folder in reversed(made):
        undo.callback(_remove_if_empty, folder)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _kept(
    stream: Iterator[Sample | Drop], split: Split, prompts: set[int], advance: Callable[[int], object] | None
) -> Iterator[Sample]:
    for record in stream:
        split.input += 1
        if advance is not None and split.input % 64 == 0:
            advance(64)
        if isinstance(record, Drop):
            split.dropped[record.reason] += 1
            split.first_drop.setdefault(record.reason, record.where)
            continue
        split.kept += 1
        if record.tally:
            split.answers[record.tally] += 1
        prompts.add(hash((record.prompt, record.images, record.audios, record.videos)))
        yield record
    if advance is not None:
        advance(split.input % 64)


def _refuse_empty(name: str, split: Split) -> None:
    if split.kept:
        return
    if not split.input:
        raise InvalidInput(f"split `{name}` has no records, nothing is written")
    reasons = ", ".join(f"{reason} {count}" for reason, count in split.dropped.most_common())
    first = next(iter(split.first_drop.items()))
    raise InvalidInput(
        f"split `{name}` keeps none of its {split.input} records ({reasons}), nothing is written",
        hint=f"look at {first[1]} ({first[0]}) first",
    )


def _shared(seen: dict[str, set[int]]) -> dict[str, int]:
    names = list(seen)
    pairs = ((one, other) for at, one in enumerate(names) for other in names[at + 1 :])
    counts = {f"{one} and {other}": len(seen[one] & seen[other]) for one, other in pairs}
    return {pair: count for pair, count in counts.items() if count}
