"""A plan in the forms that others read: Hydra's words, a shell script, YAML."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.plan.overrides import Rendered, hydra_words
from omnirl.plan.placement import placement
from omnirl.recipe.registry import Resolved

_BARE_KEY = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_NO_KEYS = re.compile(r"y|n|yes|no|on|off|true|false|null", re.IGNORECASE)
"""What YAML readers of one age or another take for something else than text."""
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Launch:
    """What `omnirl train` is to be called with.

    Attributes:
        folder: the working folder, from which relative paths are read.
        options: names and values of the options that choose and set, such as `("--set", "train.steps = 3")`.
        words: verl's words after `--`.
        variables: documented environment variables that were in effect, as defaults.
        recipes: the value of OMNIRL_RECIPES, empty if unset.
    """

    folder: Path
    options: Sequence[tuple[str, str]] = ()
    words: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    recipes: str = ""


def hydra(rendered: Rendered) -> str:
    """One override a line, as a run's overrides.txt holds them."""
    return "\n".join(hydra_words(rendered.overrides))


def yaml(rendered: Rendered) -> str:
    """The overrides as the nested configuration that they amount to; YAML 1.1 and 1.2 read it alike.

    Raises:
        InvalidInput: a key has a value and keys below it.
    """
    nested: dict[str, Any] = {}
    for key, value in rendered.overrides.items():
        *path, name = key.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise InvalidInput(f"verl's key `{part}` has a value, so `{key}` cannot stand below it")
        if isinstance(at.get(name), dict):
            raise InvalidInput(f"verl's key `{key}` has keys below it, so it cannot have a value")
        at[name] = value
    return "\n".join(_block(nested, ""))


def shell(resolved: Resolved, rendered: Rendered, launch: Launch) -> str:
    """A bash script that starts the run the way omnirl starts it from here.

    It calls `omnirl train`, since verl's own entry point knows nothing of what omnirl registers with verl.
    """
    recipe = resolved.recipe
    hardware = recipe.hardware
    scripts = placement(recipe)["scripts"]
    nodes, devices = _count(hardware.nodes, "machine"), _count(hardware.devices_per_node, "device")
    lines = [
        "#!/usr/bin/env bash",
        f"# {resolved.task} on {resolved.hardware}: {recipe.algo.kind}, {recipe.tune.kind} ({recipe.evidence}).",
        f"# {nodes} of {devices}: {_comment(hardware.summary)}.",
        "# The variables of `omnirl recipe env` and further options of `omnirl train` change it:",
        "#   TRAIN_BATCH_SIZE=64 bash FILE --name trial",
    ]
    if scripts:
        lines += ["", "# What NPUs need; a shell that has it already is left as it is.", *_sourced(scripts)]
    lines += ["", "set -euo pipefail", "", "# Relative paths start here.", f"cd {quote(str(launch.folder))}"]
    if launch.recipes:
        lines += [
            "",
            "# Recipes that did not come with omnirl.",
            f"export OMNIRL_RECIPES={quote(launch.recipes)}",
        ]
    if launch.variables:
        lines += ["", "# Set when this was written; yours count where you set them."]
        lines += [_default(name, text) for name, text in launch.variables.items()]
    if rendered.env:
        lines += ["", "# The recipe sets these, so a change belongs there or in `--set 'env.NAME = \"...\"'`."]
        lines += [f"export {name}={quote(text)}" for name, text in rendered.env.items()]
    if hardware.nodes > 1:
        lines += ["", "# Run it on one machine, after `ray start` on all of them."]
        lines += ['export RAY_ADDRESS="${RAY_ADDRESS:-auto}"']
    return "\n".join([*lines, "", *_command(resolved, launch)])


def quote(text: str) -> str:
    """One word of bash; control characters and bytes that are no text as escapes, so that the script is plain text."""
    if not _UNPRINTABLE.search(text):
        return shlex.quote(text)
    plain = (
        f"\\{chr(byte)}" if byte in b"\\'" else chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}"
        for byte in os.fsencode(text)
    )
    return f"$'{''.join(plain)}'"


def _sourced(scripts: Sequence[str]) -> Iterator[str]:
    """Before `set -u`, which these scripts do not survive."""
    yield 'if [ -z "${ASCEND_HOME_PATH:-}" ]; then'
    yield f"  for script in {shlex.join(scripts)}; do"
    yield '    [ -r "$script" ] || { echo "$script is missing: is CANN installed?" >&2; exit 4; }'
    yield '    source "$script"'
    yield "  done"
    yield "fi"


def _default(name: str, text: str) -> str:
    """Bash reads quotes inside `${NAME:-...}` in its own way, so the text stands in a plain assignment."""
    return f'[ -n "${{{name}:-}}" ] || {name}={quote(text)}; export {name}'


def _command(resolved: Resolved, launch: Launch) -> list[str]:
    """One option a line. What the script is called with comes last of the options, so that it counts most."""
    lines = [f'exec "${{PYTHON:-python}}" -m omnirl train {quote(resolved.task)} --on {quote(resolved.hardware)}']
    lines += [f"{_INDENT}{name} {quote(value)}" for name, value in launch.options]
    lines.append(f'{_INDENT}"$@"')
    if launch.words:
        lines += [f"{_INDENT}--", *(_INDENT + quote(word) for word in launch.words)]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _comment(text: str) -> str:
    return " ".join(text.split())


def _block(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_key(key)}:"
            yield from _block(value, indent + _INDENT)
        else:
            yield f"{indent}{_key(key)}: {_flow(value)}"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) and not _NO_KEYS.fullmatch(key) else json.dumps(key, ensure_ascii=False)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, float):
        return _float(value)
    return json.dumps(value, ensure_ascii=False)


def _float(value: float) -> str:
    """YAML 1.1 takes `3e-06` for text: it wants a point."""
    if not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    digits, exponent, power = repr(value).partition("e")
    return f"{digits}{'' if '.' in digits else '.0'}{exponent}{power}"
