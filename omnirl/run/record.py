"""A run's folder: what makes it repeatable, its attempts, and what state it is in.

runs/<name>/  run.json  recipe.json  overrides.txt  lock  latest -> attempts/2
              attempts/1/{attempt.json, log.txt, metrics.jsonl, phase.json, exit.json}  checkpoints/
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake
from omnirl.files import disk_faults, link, read_json, write_json, write_text

SCHEMA = "omnirl/run/1"
State = Literal["new", "running", "done", "failed", "interrupted"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_LOCK_PATIENCE_S = 1.0
"""A listing holds a run's lock for an instant to see whether it is taken; a start must outwait that."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One launch of a run; `number` counts from 1."""

    number: int
    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tag(self) -> str | None:
        """What its processes carry in their environment."""
        tag = (read_json(self.path / "attempt.json") or {}).get("tag")
        return tag if isinstance(tag, str) and tag else None

    def phase(self) -> tuple[str, str]:
        """What the engine says it is doing: a phase and a detail, both empty before it says anything."""
        document = read_json(self.path / "phase.json") or {}
        return str(document.get("phase") or ""), str(document.get("detail") or "")

    def finish(self, state: State, code: int, *, step: int, seconds: float) -> None:
        """Note how it ended, in exit.json."""
        ended = {"state": state, "code": code, "step": step, "seconds": round(seconds, 3), "ended": _now()}
        write_json(self.path / "exit.json", ended)


@dataclass(frozen=True, slots=True)
class Run:
    """A run's folder."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def document(self) -> dict[str, Any]:
        """run.json; empty when the folder is no run or its record is damaged."""
        document = read_json(self.path / "run.json") or {}
        return document if document.get("schema") == SCHEMA else {}

    def recipe(self) -> dict[str, Any]:
        """recipe.json as it was written; raises InvalidInput when it cannot be read."""
        document = read_json(self.path / "recipe.json")
        if document is None or not isinstance(document.get("values"), dict):
            raise InvalidInput(f"`{self.path / 'recipe.json'}` is missing or damaged", hint="start a new run")
        return document

    def algo(self) -> dict[str, Any]:
        """The recipe's table `algo`; empty when it cannot be read."""
        values = (read_json(self.path / "recipe.json") or {}).get("values")
        algo = values.get("algo") if isinstance(values, dict) else None
        return algo if isinstance(algo, dict) else {}

    def attempts(self) -> list[Attempt]:
        """Its attempts, oldest first."""
        folder = self.path / "attempts"
        numbers = sorted(int(p.name) for p in folder.glob("[0-9]*") if p.name.isdecimal()) if folder.is_dir() else []
        return [Attempt(number, folder / str(number)) for number in numbers]

    def state(self) -> State:
        """Running while an omnirl holds the lock; otherwise what the last attempt left behind."""
        if self.locked():
            return "running"
        attempts = self.attempts()
        if not attempts:
            return "new"
        state = (read_json(attempts[-1].path / "exit.json") or {}).get("state")
        # No word of how it ended: omnirl itself was killed.
        return state if state in ("done", "failed", "interrupted") else "interrupted"

    def write(self, document: Mapping[str, Any], recipe: Mapping[str, Any], overrides: list[str]) -> None:
        """Write (again) what the engine reads: run.json, recipe.json, overrides.txt."""
        write_json(self.path / "recipe.json", recipe)
        write_text(self.path / "overrides.txt", "".join(f"{word}\n" for word in overrides))
        write_json(self.path / "run.json", {"schema": SCHEMA, "name": self.name, **document})

    def new_attempt(self, tag: str) -> Attempt:
        """Make the next attempt's folder, keep the recipe it starts with, and point `latest` at it."""
        known = self.attempts()
        attempt = Attempt(known[-1].number + 1 if known else 1, Path())
        attempt = Attempt(attempt.number, self.path / "attempts" / str(attempt.number))
        with disk_faults(attempt.path):
            attempt.path.mkdir(parents=True)
        for name in ("recipe.json", "overrides.txt"):
            write_text(attempt.path / name, (self.path / name).read_text(encoding="utf-8"))
        write_json(attempt.path / "attempt.json", {"tag": tag, "pid": os.getpid(), "started": _now()})
        write_json(self.path / "run.json", {**self.document(), "attempt": attempt.number})
        link(self.path / "latest", f"attempts/{attempt.number}")
        return attempt

    def locked(self) -> bool:
        """Whether an omnirl works on it now."""
        try:
            with (self.path / "lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run; raises EnvironmentLacks when another omnirl does. The lock goes with the process."""
        with disk_faults(self.path / "lock"):
            file = (self.path / "lock").open("ab")
        with file:
            until = time.monotonic() + _LOCK_PATIENCE_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise EnvironmentLacks(
                            f"run `{self.name}` is in use by another omnirl", hint="omnirl run list"
                        ) from None
                    time.sleep(0.05)
            yield


def reserve(root: Path, name: str | None, *, stem: str) -> Run:
    """Make a new run's folder: `name`, or `stem`-1, `stem`-2, ...

    Raises:
        UsageMistake: the name is taken or cannot name a folder.
        EnvironmentLacks: the folder cannot be made.
    """
    with disk_faults(root):
        root.mkdir(parents=True, exist_ok=True)
    if name is not None:
        check_name(name)
        with disk_faults(root / name):
            try:
                (root / name).mkdir()
            except FileExistsError:
                raise UsageMistake(
                    f"there is already something at `{root / name}`",
                    hint=f"choose another `--name`, or go on with it: `--resume --name {name}`",
                    where="--name",
                ) from None
        return Run(root / name)
    number = 1 + max((int(p.name.rpartition("-")[2]) for p in root.glob(f"{stem}-*") if _numbered(p.name)), default=0)
    while True:
        with disk_faults(root):
            try:
                (root / f"{stem}-{number}").mkdir()
            except FileExistsError:
                number += 1
                continue
        return Run(root / f"{stem}-{number}")


@contextmanager
def reserved(root: Path, name: str | None, *, stem: str) -> Iterator[Run]:
    """As `reserve`; the folder goes again when an error leaves it without a single attempt."""
    run = reserve(root, name, stem=stem)
    try:
        yield run
    except BaseException:
        if not run.attempts():
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def find(root: Path, name: str) -> Run:
    """The run called `name` (or at that path); raises InvalidInput with the nearest names."""
    for path in (root / name, Path(name)):
        run = Run(path.absolute())
        if run.document():
            return run
    from difflib import get_close_matches

    near = get_close_matches(name, [run.name for run in runs(root)], n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"omnirl run list --runs {root}"
    raise InvalidInput(f"there is no run `{name}` in `{root}`", hint=hint)


def runs(root: Path) -> list[Run]:
    """Every run in the folder, oldest first; whatever else lies there is left out."""
    if not root.is_dir():
        return []
    found = [Run(path) for path in root.iterdir() if path.is_dir() and not path.is_symlink()]
    known = [(str(document.get("created")), run) for run in found if (document := run.document())]
    return [run for _, run in sorted(known, key=lambda pair: (pair[0], pair[1].name))]


def check_name(name: str) -> None:
    """Raises UsageMistake unless `name` can name a run."""
    if not _NAME.fullmatch(name):
        raise UsageMistake(
            f"`{name}` cannot name a run", hint="use letters, digits, `.`, `_`, `+` and `-`", where="--name"
        )


def created_now() -> str:
    """The time for run.json's `created`."""
    return _now()


def _numbered(name: str) -> bool:
    return name.rpartition("-")[2].isdecimal()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
