"""The data sets that omnirl converts, by name. A source's module is imported only when it is used.

A source module has one function::

    def splits(input: Path | None, output: Path, options: Options) -> Iterator[tuple[str, Iterator[Sample | Drop]]]

It yields each split's name (the parquet's stem) with the stream of its records. A stream is read to its end before
the next split is asked for. A source that makes its own media writes them below `output`, which exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, cast

from omnirl.data.sample import Drop, Sample
from omnirl.errors import EnvironmentLacks, UsageMistake

Splits = Iterator[tuple[str, Iterator[Sample | Drop]]]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may vary in a conversion; `rows` overrides the rows per split of a source that makes its own."""

    seed: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)


class SplitsFunction(Protocol):
    def __call__(self, input: Path | None, output: Path, options: Options) -> Splits: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A data set by name; `layout` says what its input folder holds, or is empty when the source makes its own data."""

    name: str
    summary: str
    module: str
    layout: str = ""
    packages: tuple[str, ...] = ()
    """Modules beyond the base install, which the extra `train` brings."""

    @property
    def needs_input(self) -> bool:
        return bool(self.layout)

    def load(self) -> SplitsFunction:
        """The source's `splits`; raises EnvironmentLacks when a package that it needs is not installed."""
        absent = [name for name in self.packages if find_spec(name) is None]
        if absent:
            names = ", ".join(f"`{name}`" for name in absent)
            raise EnvironmentLacks(f"making `{self.name}` data needs {names}", hint="pip install 'omnirl[train]'")
        return cast(SplitsFunction, import_module(self.module).splits)


SOURCES = {
    source.name: source
    for source in (
        Source(
            "gsm8k",
            "school maths word problems with a number as the answer",
            "omnirl.data.sources.gsm8k",
            layout="train.jsonl and test.jsonl, or train*.parquet and test*.parquet",
        ),
        Source(
            "toy",
            "small made-up questions about text, images, sounds and videos",
            "omnirl.data.sources.toy",
            packages=("numpy", "av", "PIL"),
        ),
    )
}


def find(name: str) -> Source:
    """The source called `name`; raises UsageMistake with the nearest names."""
    if name in SOURCES:
        return SOURCES[name]
    near = get_close_matches(name, SOURCES, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"one of: {', '.join(SOURCES)}"
    raise UsageMistake(f"no data source is called `{name}`", hint=hint, where="SOURCE")
