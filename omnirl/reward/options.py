"""The options of the built-in scorers: the recipe's `[reward] options`, and those of `omnirl score`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.reward.notation import Percent
from omnirl.reward.outcome import MAX_SCORER_ERROR_SHARE
from omnirl.reward.verify import TIMEOUT_S

MODES = {
    "choice": ("default", "strict", "lenient"),
    "gsm8k": ("default", "reference"),
    "mmk12": ("default", "reference"),
}
_EVERYWHERE = ("mode", "max_scorer_error_share")
TAKEN = {
    "choice": _EVERYWHERE,
    "gsm8k": _EVERYWHERE,
    "mmk12": (*_EVERYWHERE, "format_weight", "percent", "timeout_s", "workers"),
}
_MOST_WORKERS = 64
_NEXT_TO_CORES = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """A scorer with all its options."""

    scorer: str
    mode: str = "default"
    max_scorer_error_share: float = MAX_SCORER_ERROR_SHARE
    """More faults of the scorer than this share of what a process scored is an error of the run."""
    format_weight: float = 0.3
    """What a perfect format adds before the sum is divided by `1 + format_weight`."""
    percent: Percent = "unit"
    timeout_s: float = TIMEOUT_S
    """Seconds for one answer, from when a worker takes it up."""
    workers: int = 1
    """The most math-verify processes; they are started when they are needed."""


def read_settings(scorer: str, options: Mapping[str, Any]) -> Settings:
    """The settings of a built-in scorer; raises InvalidInput for an option or a value that it does not take."""
    taken = TAKEN[scorer]
    for name in options:
        if name not in taken:
            near = get_close_matches(str(name), taken, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(taken)}"
            raise InvalidInput(f"the scorer `{scorer}` takes no option `{name}`", hint=hint)
    checks: dict[str, Callable[[Any], bool]] = {
        "mode": lambda value: value in MODES[scorer],
        "max_scorer_error_share": lambda value: _number(value) and 0 <= value <= 1,
        "format_weight": lambda value: _number(value) and 0 <= value <= 100,
        "percent": lambda value: value in ("unit", "fraction"),
        "timeout_s": lambda value: _number(value) and 0 < value <= 3600,
        "workers": lambda value: isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_WORKERS,
    }
    for name, value in options.items():
        if not isinstance(value, int | float | str) or not checks[name](value):
            raise InvalidInput(f"`{name} = {value!r}` is no value for the scorer `{scorer}`", hint=_hints(scorer)[name])
    return Settings(scorer=scorer, **{"workers": min(_NEXT_TO_CORES, os.cpu_count() or 1), **options})


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _hints(scorer: str) -> dict[str, str]:
    return {
        "mode": f"one of {', '.join(MODES[scorer])}",
        "max_scorer_error_share": "a number from 0 to 1",
        "format_weight": "a number from 0 to 100",
        "percent": "`unit` or `fraction`",
        "timeout_s": "seconds, above 0 and at most 3600",
        "workers": f"a whole number from 1 to {_MOST_WORKERS}",
    }
