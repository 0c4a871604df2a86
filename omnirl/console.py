"""What the user sees: data on stdout, everything else on stderr. The only module that imports rich.

Text from outside is never read as markup, never wrapped in a pipe, and cannot send control sequences to a terminal.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from omnirl.errors import OmniError

Color = Literal["auto", "always", "never"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NEVER_RAW_IN_JSON = re.compile(r"[\x7f-\x9f\ud800-\udfff]")
_PLAIN_PROGRESS_EVERY_S = 10.0


@dataclass(slots=True)
class _State:
    verbosity: int = 0
    color: Color = "auto"
    progress: bool = True


_state = _State()


def configure(*, verbosity: int = 0, color: Color = "auto", progress: bool = True) -> None:
    """Set what the global options ask for; `verbosity` is the number of `-v` less the number of `-q`."""
    _state.verbosity = verbosity
    _state.color = color
    _state.progress = progress


def verbosity() -> int:
    """The number of `-v` less the number of `-q`."""
    return _state.verbosity


def emit_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout, keys in the order given.

    Numbers that JSON lacks (NaN, infinities) become null; lone surrogates stay escaped.
    """
    text = json.dumps(_jsonable(document), ensure_ascii=not _speaks_utf8(sys.stdout), indent=2, allow_nan=False)
    sys.stdout.write(_NEVER_RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")
    sys.stdout.flush()


def line(text: str = "") -> None:
    """Print one line on stdout as it is."""
    _write(sys.stdout, text)


def note(text: str) -> None:
    """Tell the user something on stderr; silent under `-q`."""
    if _state.verbosity >= 0:
        _write(sys.stderr, text)


def warn(text: str) -> None:
    """Warn on stderr; silent under `-qq`."""
    if _state.verbosity > -2:
        _labelled("warning", text, "yellow")


def report(error: OmniError) -> None:
    """Print `error:`, one line a problem, and `hint:` on stderr."""
    where = f"{error.where}: " if error.where else ""
    _labelled("error", f"{where}{error.message}", "bold red")
    rows = [(p.where or "", p.key or "", _with_hint(p.message, p.hint), p.code) for p in error.problems]
    for text in _aligned(rows):
        _write(sys.stderr, f"  {text}")
    if error.hint:
        _write(sys.stderr, "")
        _labelled("hint", error.hint, "cyan")


def usage(message: str, hint: str | None) -> None:
    """Print a mistake in the command line the way every other error is printed."""
    _labelled("error", message, "bold red")
    if hint:
        _write(sys.stderr, "")
        _labelled("hint", hint, "cyan")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on stdout: framed on a terminal, aligned plain text with a heading row when piped."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not _is_terminal(sys.stdout):
        for text in _aligned([tuple(columns), *map(tuple, cells)]):
            _write(sys.stdout, text)
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(cells) and all(_looks_numeric(row[index]) for row in cells)
        drawn.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(_visible(value)) for value in row))
    _rich(sys.stdout).print(drawn)


class Advance(Protocol):
    """Tells a progress display that `n` more are done."""

    def __call__(self, n: int = 1) -> None: ...


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Advance]:
    """Show how far a loop is, on stderr. Yields `advance(n)`.

    A bar on a terminal; elsewhere one plain line every ten seconds; nothing under `-q` or `--no-progress`.
    """
    if not _live():
        yield _plain_progress(description, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_rich(sys.stderr), transient=True) as bars:
        task = bars.add_task(description, total=total)

        def advance(n: int = 1) -> None:
            bars.advance(task, n)

        yield advance


class Status(Protocol):
    """A place on stderr that is rewritten while a run goes on."""

    def update(self, lines: Sequence[str], plain: str | None = None) -> None:
        """Show `lines` in place of the last ones; where nothing can be rewritten, print `plain` if given."""


@contextmanager
def status() -> Iterator[Status]:
    """A few updating lines on a terminal; elsewhere one plain line a call that has something new to say."""
    if not _live():
        yield _PlainStatus()
        return
    from rich.live import Live

    with Live(console=_rich(sys.stderr), auto_refresh=False, transient=True) as live:
        yield _LiveStatus(lambda drawn: live.update(drawn, refresh=True))


class _PlainStatus:
    def update(self, lines: Sequence[str], plain: str | None = None) -> None:
        if plain and _state.progress:
            note(plain)


class _LiveStatus:
    def __init__(self, show: Callable[[RenderableType], None]) -> None:
        self._show = show

    def update(self, lines: Sequence[str], plain: str | None = None) -> None:
        from rich.text import Text

        self._show(Text("\n".join(_visible(text) for text in lines), no_wrap=True, overflow="ellipsis"))


def _plain_progress(description: str, total: int | None) -> Advance:
    done = 0
    told = time.monotonic()

    def advance(n: int = 1) -> None:
        nonlocal done, told
        done += n
        if _state.progress and time.monotonic() - told >= _PLAIN_PROGRESS_EVERY_S:
            told = time.monotonic()
            note(f"{description} {done}" + (f"/{total}" if total is not None else ""))

    return advance


def _live() -> bool:
    """Whether stderr may be rewritten in place. Verbose output would interleave with it, so `-v` turns it off."""
    return _state.progress and _state.verbosity == 0 and _is_terminal(sys.stderr) and not os.environ.get("CI")


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _colored(stream: TextIO) -> bool:
    if _state.color != "auto":
        return _state.color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "").lower() not in ("", "0", "false", "no"):
        return True
    return _is_terminal(stream)


def _rich(stream: TextIO) -> Console:
    from rich.console import Console

    colored = _colored(stream)
    return Console(
        file=stream,
        force_terminal=colored or _is_terminal(stream),
        no_color=not colored,
        color_system="auto" if colored else None,
        markup=False,
        emoji=False,
        highlight=False,
    )


def _labelled(label: str, text: str, style: str) -> None:
    if not _colored(sys.stderr):
        _write(sys.stderr, f"{label}: {text}")
        return
    from rich.text import Text

    _rich(sys.stderr).print(Text.assemble((f"{label}:", style), f" {_visible(text)}"), soft_wrap=True)


def _write(stream: TextIO, text: str) -> None:
    stream.write(_visible(text) + "\n")
    stream.flush()


def _visible(text: str) -> str:
    """Control characters and lone surrogates as escapes: a file's name must not drive the terminal."""
    text = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    cells = [[_visible(value).replace("\n", "\\n").replace("\t", "\\t") for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)] if cells else []
    for row in cells:
        yield "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True) if w).rstrip()


def _with_hint(message: str, hint: str | None) -> str:
    return f"{message} ({hint})" if hint else message


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _looks_numeric(text: str) -> bool:
    return bool(re.fullmatch(r"-|[-+]?[0-9][0-9.,]*(e[-+]?[0-9]+)?%?", text))


def _speaks_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return _jsonable(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(item) for item in value]
    return value
