"""What differs between two recipes, each a resolved pair or one that a run kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from omnirl.recipe.layers import Setting

RECORD = "recipe.json"
"""The origin of a value whose origin the record does not tell."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that is not the same on both sides; None where a side leaves it unset."""

    key: str
    a: Setting | None
    b: Setting | None

    def as_dict(self) -> dict[str, Any]:
        return {"setting": self.key, "a": _plain(self.a), "b": _plain(self.b)}


def recorded(document: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings in a run's recipe.json (`omnirl/recipe/1`) with the origins that it tells."""
    origins = document.get("origins")
    told = origins if isinstance(origins, dict) else {}
    found = {}
    for key, value in _leaves(document["values"]):
        origin = _origin(key, told)
        found[key] = Setting(value, origin)
    return found


def differences(a: Mapping[str, Setting], b: Mapping[str, Setting]) -> list[Difference]:
    """What differs, in the order of `a`; settings that `b` alone has come last.

    Open tables are compared key by key. Unset and absent are the same; `1`, `1.0` and `true` are not.
    """
    left, right = _single(a), _single(b)
    keys = [*left, *(key for key in right if key not in left)]
    pairs = [Difference(key, left.get(key), right.get(key)) for key in keys]
    return [pair for pair in pairs if _text(pair.a) != _text(pair.b)]


def _single(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    found = {}
    for key, setting in settings.items():
        for inner, value in _leaves({key: setting.value}):
            if value is not None:
                found[inner] = Setting(value, setting.origin)
    return found


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _origin(key: str, told: Mapping[str, Any]) -> str:
    """The origin of a setting, or of the table that holds it."""
    while key:
        entry = told.get(key)
        if isinstance(entry, dict) and isinstance(entry.get("origin"), str):
            return str(entry["origin"])
        key = key.rpartition(".")[0]
    return RECORD


def _text(setting: Setting | None) -> str | None:
    return None if setting is None else json.dumps(setting.value, sort_keys=True, default=str)


def _plain(setting: Setting | None) -> dict[str, Any] | None:
    return None if setting is None else {"value": setting.value, "origin": setting.origin}
