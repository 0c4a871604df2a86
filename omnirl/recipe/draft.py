"""The text of a recipe of one's own: a small file that extends a task, with settings to uncomment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from omnirl.recipe.registry import Resolved
from omnirl.recipe.search import shipped

_SHARED = ("model.path", "data.train", "data.val", "reward.scorer")
_ON_HARDWARE = (
    "batch.prompts",
    "batch.group_size",
    "optim.learning_rate",
    "rollout.tensor_parallel",
    "rollout.memory_fraction",
    "train.steps",
    "train.save_every",
)
_STEPS = 100
"""An example where the task sets no limit."""


def draft(name: str, pairs: Sequence[Resolved]) -> str:
    """A file that makes the task `name` from `pairs`, all of one task.

    As it is, it changes nothing but the evidence. The lines in comments are TOML with the values that hold anyway.
    """
    task, first = pairs[0].task, pairs[0]
    hardware = [pair.hardware for pair in pairs]
    lines = [
        f"#:schema {(shipped() / 'recipe.schema.json').as_uri()}",
        f"# {name}: `{task}` with changes. What is not set here comes from the file that it extends; to see all of it:",
        f"#   omnirl recipe show {name} --on {hardware[0]} --origin",
        *([f"#   omnirl recipe diff {task}/{hardware[0]} {name}/{hardware[0]}"] if name != task else []),
        f"extends = [{json.dumps(f'{task}.toml')}]",
        "",
        "# Take the `# ` away from a table and from what should change in it. What stands here holds for all hardware.",
    ]
    everywhere = [key for key in _SHARED if len({_text(pair, key) for pair in pairs}) == 1]
    lines += _examples(first, everywhere, "")
    lines += [
        "",
        f"# `{name}` can run where there is a table for it. What stands here is stronger than what stands above.",
    ]
    for pair in pairs:
        table = f"on.{_name(pair.hardware)}"
        own = [key for key in (*_SHARED, *_ON_HARDWARE) if key not in everywhere]
        lines += [f"[{table}]", '# "smoke" after a few steps, "verified" after a whole run; `proof` says which.']
        lines += ['evidence = "planned"', *_examples(pair, own, f"{table}."), ""]
    return "\n".join(lines).rstrip() + "\n"


def _examples(pair: Resolved, keys: Sequence[str], prefix: str) -> list[str]:
    lines: list[str] = []
    for table in dict.fromkeys(key.rpartition(".")[0] for key in keys):
        settings = [key for key in keys if key.rpartition(".")[0] == table and _value(pair, key) is not None]
        if settings:
            lines += ["", f"# [{prefix}{table}]"]
            lines += [f"# {key.rpartition('.')[2]} = {_text(pair, key)}" for key in settings]
    return lines


def _value(pair: Resolved, key: str) -> Any:
    value = pair.origins[key].value
    return _STEPS if value is None and key == "train.steps" else value


def _text(pair: Resolved, key: str) -> str:
    """A value as TOML: JSON's text, numbers and lists of text are TOML's too."""
    return json.dumps(_value(pair, key), ensure_ascii=False)


def _name(text: str) -> str:
    bare = text.isascii() and all(character.isalnum() or character in "-_" for character in text)
    return text if bare else json.dumps(text)
