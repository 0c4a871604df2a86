"""Exit codes and the errors a user can cause. Imports nothing heavier than the standard library."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any, Literal


class Exit(IntEnum):
    """Process exit codes of the command line."""

    OK = 0
    NO = 1
    """The answer is no: a check failed, a run is unhealthy, a plan does not fit."""
    USAGE = 2
    """Wrong option or argument."""
    INVALID = 3
    """A recipe or an input file is wrong."""
    ENVIRONMENT = 4
    """A missing extra, device, disk space or service."""
    CHILD = 5
    """A program that omnirl started failed."""
    BUG = 70
    """A fault of omnirl itself."""
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a recipe, a plan or an input.

    `where` is `file:line`, an option such as `--set`, or a row; `key` is the setting at fault, if there is one.
    """

    code: str
    message: str
    severity: Literal["error", "warning"] = "error"
    key: str | None = None
    where: str | None = None
    hint: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class OmniError(Exception):
    """An expected failure: one line for the user, never a traceback.

    Args:
        message: what is wrong, lower case, no full stop, literals in backticks.
        hint: one line that mends it, where possible a command to paste.
        where: `file:line` or the option at fault.
        problems: every problem found, when there is more than one to tell.
    """

    exit = Exit.INVALID

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: str | None = None,
        problems: tuple[Problem, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where
        self.problems = problems


class NegativeAnswer(OmniError):
    """The question was understood and the answer is no."""

    exit = Exit.NO


class UsageMistake(OmniError):
    """The command line asks for something that does not exist or does not go together."""

    exit = Exit.USAGE


class InvalidInput(OmniError):
    """A recipe or an input file is wrong."""

    exit = Exit.INVALID


class EnvironmentLacks(OmniError):
    """The machine lacks something: a package, a device, disk space, a service."""

    exit = Exit.ENVIRONMENT


class ChildFailed(OmniError):
    """A program that omnirl started failed."""

    exit = Exit.CHILD
