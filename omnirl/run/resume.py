"""Going on with a run: its recorded recipe, what was asked to change, and what may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnirl.errors import InvalidInput, Problem
from omnirl.recipe.layers import DOTTED, Setting, merge, parse_set
from omnirl.recipe.registry import Resolved
from omnirl.recipe.source import Key
from omnirl.recipe.validate import validate

MAY_CHANGE = frozenset(
    {
        "train.steps",
        "train.epochs",
        "train.save_every",
        "train.validate_every",
        "train.validate_before",
        "train.keep_checkpoints",
        "train.loggers",
        "rollout.workers",
        "rollout.max_failed_share",
        "reward.workers",
        "rollout.tensor_parallel",
        "rollout.devices",
        "hardware.nodes",
        "hardware.devices_per_node",
    }
)
"""Settings that do not change what a step computes, but for the order of its sums."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting (or a data file's hash) that is not what the run was made with."""

    key: str
    recorded: Any
    wanted: Any

    @property
    def allowed(self) -> bool:
        return self.key in MAY_CHANGE


def recorded_recipe(document: Mapping[str, Any], sets: Sequence[str] = ()) -> Resolved:
    """The recipe of a run's recipe.json with `sets` laid over it.

    Raises:
        InvalidInput: the record does not fit this version's schema, or a set is wrong.
    """
    origins = document.get("origins") or {}
    layer: Mapping[Key, Setting] = {
        key: Setting(value, str((origins.get(".".join(key)) or {}).get("origin", "recipe.json")))
        for key, value in _leaves(document["values"])
    }
    problems: list[Problem] = []
    for word in sets:
        layer = merge(layer, parse_set(word), problems)
    outcome = validate(layer, "recipe.json")
    problems += outcome.problems
    if problems or outcome.recipe is None:
        raise InvalidInput("the run cannot go on with these settings", problems=tuple(problems))
    return Resolved(
        outcome.recipe,
        str(document.get("task")),
        str(document.get("hardware")),
        {".".join(key): setting for key, setting in layer.items()},
    )


def differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Difference]:
    """What differs between two recipes' values, by dotted setting."""
    before, after = ({".".join(key): value for key, value in _leaves(values)} for values in (recorded, wanted))
    keys = [*before, *(key for key in after if key not in before)]
    return [
        Difference(key, before.get(key), after.get(key)) for key in keys if _plain(before, key) != _plain(after, key)
    ]


def changed_data(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[Difference]:
    """Data files whose content is not what the run was made with."""
    return [
        Difference(f"sha256 of {path}", recorded[path], now.get(path))
        for path in recorded
        if recorded[path] != now.get(path)
    ]


def require_allowed(found: Sequence[Difference], *, run: str) -> None:
    """Raise InvalidInput with every difference that would make the rest of the run another run."""
    refused = [difference for difference in found if not difference.allowed]
    if refused:
        raise InvalidInput(
            f"run `{run}` was made with other settings",
            hint="leave them as they were, start a new run, or insist with `--force`",
            problems=tuple(
                Problem("differs", f"was {_short(d.recorded)}, now {_short(d.wanted)}", key=d.key) for d in refused
            ),
        )


def _leaves(values: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in values.items():
        path = (*prefix, *(name.split(".") if prefix == (DOTTED,) else (name,)))
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _plain(values: Mapping[str, Any], key: str) -> tuple[bool, Any]:
    return key in values, values.get(key)


def _short(value: Any) -> str:
    text = "unset" if value is None else f"`{value}`"
    return text if len(text) <= 40 else f"{text[:36]}...`"
