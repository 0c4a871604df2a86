"""Prompt lengths in tokens, counted by `python -m omnirl.engine.lengths` in a process of its own."""

from __future__ import annotations

import heapq
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from omnirl.errors import EnvironmentLacks

PACKAGES = ("torch", "transformers", "av", "PIL", "numpy")
SILENCE_S = 300.0
"""How long the counting process may go without an answer before it is given up."""
TINY = "tiny"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_LONGEST = 5
_CHUNK = 1 << 16


class Length(NamedTuple):
    """The tokens of one row's prompt: of its words, and of its media. With a `fault` they are unknown (0)."""

    file: int
    row: int
    text: int
    media: int
    fault: str = ""

    @property
    def tokens(self) -> int:
        return self.text + self.media


class Counting:
    """The counting process. A context manager that never leaves it running; it loads its packages while others work."""

    def __init__(
        self,
        files: Sequence[tuple[Path, Sequence[int] | None]],
        *,
        model: str,
        corpus: Path | None = None,
        soundtrack: bool = False,
        processor: Mapping[str, Any] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Start counting.

        Args:
            files: parquet files, each with the sorted numbers of the rows to count; None is all.
            model: a checkpoint folder, a hub name that is in the cache, or `tiny`.
            corpus: the parquet whose prompts the tiny tokenizer learns, as in a run.
            soundtrack, processor: the recipe's `data.soundtrack` and `data.processor`.

        Raises:
            EnvironmentLacks: a package of the extra `train` is not installed, or there is no such folder.
        """
        absent = [name for name in PACKAGES if find_spec(name) is None]
        if absent:
            names = ", ".join(f"`{name}`" for name in absent)
            raise EnvironmentLacks(f"counting tokens needs {names}", hint="pip install 'omnirl[train]'")
        if model != TINY and not _HUB_NAME.fullmatch(model) and not Path(model).expanduser().is_dir():
            raise EnvironmentLacks(f"there is no model folder `{model}`", hint="--model DIR names a checkpoint folder")
        self._silence_s = silence_s
        self._request = {
            "files": [{"path": str(path), "rows": None if rows is None else list(rows)} for path, rows in files],
            "model": model,
            "corpus": None if corpus is None else str(corpus),
            "soundtrack": soundtrack,
            "processor": dict(processor or {}),
        }

    def __enter__(self) -> Counting:
        self._said: IO[bytes] = tempfile.TemporaryFile()
        self._asked: IO[bytes] = tempfile.TemporaryFile()
        self._asked.write(json.dumps(self._request).encode())
        self._asked.seek(0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "omnirl.engine.lengths"],
            stdin=self._asked,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={"OMP_NUM_THREADS": "1", **os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdout, self._said, self._asked):
            if file is not None:
                file.close()

    def lengths(self) -> Iterator[Length]:
        """The length of every row, in order.

        Raises:
            EnvironmentLacks: the process gave up, died, or has not answered for too long.
        """
        for line in self._lines():
            answer = json.loads(line)
            if "error" in answer:
                raise EnvironmentLacks(str(answer["error"]), hint="--model DIR names a checkpoint folder")
            at = answer["file"], answer["row"]
            yield (
                Length(*at, 0, 0, answer["fault"])
                if "fault" in answer
                else Length(*at, answer["text"], answer["media"])
            )
        code = self._process.wait()
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise EnvironmentLacks(f"counting tokens ended with {how}: {self._last_words()}")

    def _lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        rest = b""
        with selectors.DefaultSelector() as ready:
            ready.register(descriptor, selectors.EVENT_READ)
            since = time.monotonic()
            while True:
                if not ready.select(self._silence_s):
                    waited = time.monotonic() - since
                    raise EnvironmentLacks(f"counting tokens has not answered for {waited:.0f} s, and was stopped")
                since = time.monotonic()
                chunk = os.read(descriptor, _CHUNK)
                if not chunk:
                    return
                *whole, rest = (rest + chunk).split(b"\n")
                yield from whole

    def _last_words(self) -> str:
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(size - 4000, 0))
        lines = self._said.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


@dataclass(slots=True)
class Distribution:
    """How long the prompts are; 8 bytes a row."""

    tokens: array[int] = field(default_factory=lambda: array("Q"))
    longest: list[tuple[int, int, int]] = field(default_factory=list)
    """Tokens, file and row of the few longest, as a heap."""

    def add(self, length: Length) -> None:
        self.tokens.append(length.tokens)
        entry = (length.tokens, -length.file, -length.row)
        if len(self.longest) < _LONGEST:
            heapq.heappush(self.longest, entry)
        else:
            heapq.heappushpop(self.longest, entry)

    def as_dict(self, files: Sequence[str]) -> dict[str, Any]:
        """Quantiles by nearest rank, and where the longest rows are."""
        ranked = sorted(self.tokens)

        def quantile(percent: int) -> int | None:
            return ranked[-(-percent * len(ranked) // 100) - 1] if ranked else None

        longest = [
            {"file": files[-file], "row": -row, "tokens": tokens} for tokens, file, row in sorted(self.longest)[::-1]
        ]
        return {
            "rows": len(ranked),
            "p50": quantile(50),
            "p95": quantile(95),
            "max": quantile(100),
            "longest": longest,
        }
