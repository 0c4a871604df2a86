"""What verl's own configuration has: a vendored list of its keys, and checks against it.

`python -m omnirl.recipe.verl_keys` writes the list anew from the installed verl, without importing it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omnirl.errors import EnvironmentLacks, Problem
from omnirl.recipe.search import nearest

_LIST = Path(__file__).with_name("verl_keys.json")

OPEN = (
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "actor_rollout_ref.model.fused_kernel_options",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "actor_rollout_ref.rollout.custom",
    "actor_rollout_ref.rollout.engine_kwargs",
    "ray_kwargs.ray_init",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs",
)
"""Dictionaries that take any key, beside the ones that are empty in verl's own configuration."""


@cache
def types() -> dict[str, str]:
    """Each key of verl's configuration and the name of its type (`any` where verl has no default)."""
    found: dict[str, str] = json.loads(_LIST.read_text(encoding="utf-8"))["keys"]
    return found


def version() -> str:
    """The verl that the list was made from."""
    return str(json.loads(_LIST.read_text(encoding="utf-8"))["verl"])


@cache
def open_tables() -> tuple[str, ...]:
    """Every dictionary that takes any key."""
    return tuple(sorted({*OPEN, *(key for key, kind in types().items() if kind == "dict")}))


def is_open(key: str) -> bool:
    """Whether a key is, or lies inside, a dictionary that takes any key."""
    return any(f"{key}.".startswith(f"{table}.") for table in open_tables())


def likely(key: str) -> str | None:
    """The key that was meant; the `actor_rollout_ref.` in front may have been left out."""
    ends = [known for known in types() if known.endswith(f".{key}")]
    if len(ends) == 1:
        return ends[0]
    lead = "actor_rollout_ref."
    names = {known: known for known in types()} | {known.removeprefix(lead): known for known in types()}
    close = nearest(key, list(names))
    return names[close] if close else None


def check(values: Mapping[str, Any], where: Callable[[str], str | None], table: str = "verl.") -> list[Problem]:
    """Problems with keys and values meant for verl.

    Args:
        values: by dotted verl key.
        where: gives the place of a key.
        table: what stands before a key when it is named as a setting.
    """
    problems = []
    for key, value in values.items():
        kind = types().get(key)
        if kind is None and not is_open(key):
            hint = f"did you mean `{close}`?" if (close := likely(key)) else "`[verl]` takes verl's own dotted keys"
            message = f"verl {version()} has no key `{key}`"
            problems.append(Problem("unknown-verl-key", message, key=table + key, where=where(key), hint=hint))
        elif kind is not None and (wanted := _mismatch(kind, value)):
            message = f"verl's `{key}` is {wanted}, not `{value!r}`"
            problems.append(Problem("wrong-type", message, key=table + key, where=where(key)))
    return problems


def _mismatch(kind: str, value: Any) -> str | None:
    if value is None or (isinstance(value, str) and "${" in value):
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in ("int", "float") and not number:
        return "a number"
    if kind == "bool" and not isinstance(value, bool):
        return "true or false"
    return None


def installed() -> tuple[str, dict[str, str]]:
    """Version and keys of the verl that is installed, read from its files.

    Raises:
        EnvironmentLacks: there is none.
    """
    from importlib.metadata import version as version_of
    from importlib.util import find_spec

    from omegaconf import OmegaConf

    spec = find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentLacks("verl is not installed", hint="pip install 'omnirl[train]'")
    path = Path(spec.submodule_search_locations[0]) / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    resolved = OmegaConf.to_container(OmegaConf.load(path), resolve=True, throw_on_missing=False)
    return version_of("verl"), dict(sorted(_types(resolved)))


def _types(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        return [
            pair for name, inner in value.items() for pair in _types(inner, f"{prefix}.{name}" if prefix else str(name))
        ]
    return [(prefix, "any" if value is None or value == "???" else type(value).__name__)]


def main() -> None:
    """Write the vendored list anew."""
    found, known = installed()
    _LIST.write_text(json.dumps({"verl": found, "keys": known}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
