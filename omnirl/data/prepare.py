"""Converting a source to parquet: every split is written and read back before any file gets its name."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from omnirl.data import manifest, store
from omnirl.data.report import REPORT, Report, Split
from omnirl.data.sample import Drop, Medium, Row
from omnirl.data.sources import Options, Source
from omnirl.errors import InvalidInput, UsageMistake
from omnirl.files import disk_faults

MAX_DROP = 0.5
VERDICTS = ".media-verdicts.jsonl"
"""Kept in the output folder between conversions: what was found out about each media file."""

Advance = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Checks:
    """How far a conversion trusts its input.

    Attributes:
        verify_media: open every media file; otherwise it only has to be there.
        probe: `auto` decodes in worker processes and asks the ffmpeg programs about what that rejects; `ffmpeg` asks
            the programs alone.
        max_drop: the share of a split's records that may be dropped, 0 to 1.
    """

    verify_media: bool = True
    probe: Literal["auto", "ffmpeg"] = "auto"
    max_drop: float = MAX_DROP


def prepare(
    source: Source,
    *,
    input: Path | None,
    output: Path,
    options: Options | None = None,
    checks: Checks | None = None,
    force: bool = False,
    dry_run: bool = False,
    advance: Advance | None = None,
) -> Report:
    """Convert `source` into `output`/<split>.parquet, with report.json, manifest.json and media.jsonl beside them.

    Nothing is done when `output` holds this very conversion of unchanged inputs, unless `force` is given. A dry run
    does the whole conversion in a temporary folder and throws it away. `advance` is called with the number of records
    read since its last call.

    Raises:
        UsageMistake: the source needs `input` and none is given.
        InvalidInput: the input cannot be read, or a split keeps no row or loses too many; no file is left behind.
        EnvironmentLacks: no room or no permission in `output`, or the ffmpeg programs are asked for and absent.
    """
    options, checks = options or Options(), checks or Checks()
    _check_input(source, input)
    if input is not None:
        input = input.absolute()
    output = output.absolute()
    with disk_faults(output):
        there = next(path for path in (output, *output.parents) if path.exists())
    if not there.is_dir():
        raise InvalidInput(f"`{there}` is a file, not a folder", hint="give a folder as `--output`", where="--output")
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="omnirl-dry-run-") as folder:
            report = _convert(source, input, Path(folder), options, checks, advance)
        report.dry_run = True
        for name, split in report.splits.items():
            split.output = output / f"{name}.parquet"
        return report
    made_from = manifest.fingerprint(source, input, options, verify_media=checks.verify_media, probe=checks.probe)
    if not force and manifest.is_current(output, made_from):
        known = Report.read(output / REPORT)
        if known is not None:
            for name, split in known.splits.items():
                _refuse_losses(name, split, checks.max_drop)
            return known
    return _convert(source, input, output, options, checks, advance, made_from)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Rows are many objects without cycles: looking for cycles among them again and again takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_collector()
def _convert(
    source: Source,
    input: Path | None,
    output: Path,
    options: Options,
    checks: Checks,
    advance: Advance | None,
    made_from: manifest.Fingerprint | None = None,
) -> Report:
    from omnirl.data.judging import Media, judged
    from omnirl.data.media import Judge

    report = Report(source.name)
    seen: dict[str, set[int]] = {}
    used: set[Medium] = set()
    with ExitStack() as undo, ExitStack() as open_judge:
        _make_folder(output, undo)
        verify = checks.verify_media and source.needs_input
        judge = open_judge.enter_context(Judge(cache=output / VERDICTS, probe=checks.probe, verify=verify))
        undo.callback(_remove_empty_file, output / VERDICTS)
        staged: list[store.Staged] = []
        for name, stream in source.load()(input, output, options):
            split, media = report.splits.setdefault(name, Split()), Media()
            target = output / f"{name}.parquet"
            if target.parent != output:
                _make_folder(target.parent, undo)
            kept = _kept(judged(stream, judge, media), split, seen.setdefault(name, set()), advance)
            one = store.stage_parquet(target, kept)
            undo.callback(one.discard)
            _refuse_empty(name, split)
            _refuse_losses(name, split, checks.max_drop)
            split.output, split.sha256 = target, one.written.sha256
            split.media, split.audio = media.as_dict(), media.audio()
            used |= media.seen
            staged.append(one)
        if not staged:
            raise InvalidInput(f"`{source.name}` gave no split at all")
        report.probed = judge.probed
        open_judge.close()
        report.shared = _shared(seen)
        manifest.forget(output)
        written = [one.commit() for one in staged]
        undo.pop_all()
        _remove_empty_file(output / VERDICTS)
        report.write(output / REPORT)
        if made_from is not None:
            # a source that makes its own media may write a file again after it was judged
            manifest.write(output, made_from, written, used, judge.found if source.needs_input else {})
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


def _remove_empty_file(path: Path) -> None:
    if path.is_file() and not path.stat().st_size:
        path.unlink()


def _kept(
    stream: Iterator[tuple[Row, tuple[Medium, ...]] | Drop], split: Split, prompts: set[int], advance: Advance | None
) -> Iterator[Row]:
    for record in stream:
        split.input += 1
        if advance is not None and split.input % 64 == 0:
            advance(64)
        if isinstance(record, Drop):
            split.dropped[record.reason] += 1
            split.first_drop.setdefault(record.reason, record.where)
            continue
        row, media = record
        split.kept += 1
        if row.tally:
            split.answers[row.tally] += 1
        prompts.add(_content(row.prompt, media))
        yield row
    if advance is not None:
        advance(split.input % 64)


def _content(prompt: str, media: tuple[Medium, ...]) -> int:
    """Equal for rows with the same prompt and media; of inline images the length and the end are looked at."""
    return hash(
        (prompt, *[content if isinstance(content, str) else (len(content), content[-64:]) for _, content in media])
    )


def _refuse_empty(name: str, split: Split) -> None:
    if split.kept:
        return
    if not split.input:
        raise InvalidInput(f"split `{name}` has no records, nothing is written")
    raise InvalidInput(
        f"split `{name}` keeps none of its {split.input} records ({_reasons(split)}), nothing is written",
        hint=_look(split),
    )


def _refuse_losses(name: str, split: Split, max_drop: float) -> None:
    lost = split.dropped.total()
    if lost > max_drop * split.input:
        raise InvalidInput(
            f"split `{name}` loses {lost} of its {split.input} records ({_reasons(split)}), more than the "
            f"{max_drop:.0%} that `--max-drop` allows",
            hint=f"{_look(split)}; if the loss is meant, --max-drop {min(1.0, lost / split.input + 0.01):.2f}",
        )


def _reasons(split: Split) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in split.dropped.most_common())


def _look(split: Split) -> str:
    reason, _ = split.dropped.most_common(1)[0]
    return f"look at {split.first_drop[reason]} ({reason}) first"


def _shared(seen: dict[str, set[int]]) -> dict[str, int]:
    names = list(seen)
    pairs = ((one, other) for at, one in enumerate(names) for other in names[at + 1 :])
    counts = {f"{one} and {other}": len(seen[one] & seen[other]) for one, other in pairs}
    return {pair: count for pair, count in counts.items() if count}
