"""The list of verl's keys that recipes are checked against, compared with the verl that is installed."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping

from omnirl.doctor.check import Check, Target
from omnirl.doctor.child import ask_module
from omnirl.doctor.packages import find
from omnirl.recipe import verl_keys

PROBE = "omnirl.doctor.probes.verl_config"
_NAME = "verl's keys"
_TIMEOUT_S = 30.0
_SHOWN = 3


def check(target: Target) -> Iterator[Check]:
    """Keys and their types; nothing to compare where verl is not installed, which `packages` tells."""
    if find("verl", sys.path) is None:
        yield Check(_NAME, "ok", f"the list is verl {verl_keys.version()}'s; none is installed")
        return
    answer, fault = ask_module(PROBE, timeout_s=_TIMEOUT_S, environ=target.environ)
    if answer is None or "fault" in answer:
        yield Check(_NAME, "fail", f"they cannot be read: {answer['fault'] if answer else fault}", None, _again())
        return
    yield compare(str(answer["version"]), answer["keys"], used=target.overrides)


def compare(version: str, keys: Mapping[str, str], used: Collection[str] = ()) -> Check:
    """The finding for a verl of this version with these keys, of which a recipe sets those in `used`."""
    known = verl_keys.types()
    gone = [key for key in known if key not in keys]
    new = [key for key in keys if key not in known]
    other = [f"{key} is {keys[key]}, not {known[key]}" for key in known if key in keys and keys[key] != known[key]]
    wanted = f"the {len(known)} keys of verl {verl_keys.version()}"
    if not (gone or new or other):
        return Check(_NAME, "ok", f"{len(keys)} keys of verl {version}", wanted)
    parts = (("lacks", gone), ("has also", new), ("differs:", other))
    found = f"verl {version} " + "; ".join(f"{what} {_some(names)}" for what, names in parts if names)
    needed = [key for key in gone if key in used]
    if needed:
        found += f"; the recipe sets {_some(needed)}"
    return Check(_NAME, "fail" if needed or gone or other else "warn", found, wanted, _again())


def _again() -> str:
    return f"pip install 'verl[verl-core]=={verl_keys.version()}'"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
