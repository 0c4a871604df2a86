"""A run as a job of a Ray cluster: the command for the cluster's head, and how it knows that it is the same run."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnirl.recipe.model import Recipe

FINGERPRINT = "OMNIRL_SUBMITTED"
"""The variable that tells a job the fingerprint of the recipe that was submitted."""

_TINY = "tiny"
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Job:
    """A command for the head: `words` of its command line, and `variables` that it is started with."""

    words: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def entrypoint(self) -> str:
        """One line for a POSIX shell, in which every word stays as it is."""
        named = [f"{name}={value}" for name, value in self.variables.items()]
        return shlex.join([*(["env", *named] if named else []), *self.words])


def absolute(recipe: Recipe, folder: Path) -> list[str]:
    """The `--set` words that make the paths of a recipe independent of the folder that omnirl is called in."""
    return [f"{key} = {_toml(value)}" for key, value in _paths(recipe, folder)]


def with_paths(sets: Sequence[str], paths: Sequence[str]) -> tuple[str, ...]:
    """The user's `--set` words, then those of `absolute`; a word that these replace whole is left out.

    Raises InvalidInput for a word that is no setting.
    """
    from omnirl.recipe.layers import parse_set

    replaced = {key for word in paths for key in parse_set(word)}
    return (*(word for word in sets if not parse_set(word).keys() <= replaced), *paths)


def fingerprint(recipe: Recipe, words: Sequence[str]) -> str:
    """A digest of everything that a recipe and words for verl decide."""
    text = json.dumps([recipe.model_dump(mode="json"), list(words)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def new_id(task: str, hardware: str) -> str:
    """A name for a job that no other one has."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", f"{task}-{hardware}")[:60]
    return f"omnirl-{plain}-{secrets.token_hex(4)}"


def _paths(recipe: Recipe, folder: Path) -> Iterator[tuple[str, Any]]:
    data = recipe.data
    for key, names in (("data.train", data.train), ("data.val", data.val), ("data.probe", data.probe)):
        moved = [_moved(name, folder) for name in names]
        if moved != list(names):
            yield key, moved
    model = recipe.model.path
    # A name of a hub looks like a relative path, and is one only where there is such a folder.
    is_path = model != _TINY and (not _HUB_NAME.fullmatch(model) or (folder / model).is_dir())
    if is_path and _moved(model, folder) != model:
        yield "model.path", _moved(model, folder)
    file, colon, function = recipe.reward.scorer.rpartition(":")
    if colon and _moved(file, folder) != file:
        yield "reward.scorer", f"{_moved(file, folder)}:{function}"


def _moved(name: str, folder: Path) -> str:
    return str(folder / Path(name).expanduser())


def _toml(value: Any) -> str:
    """JSON's text and lists of text are TOML's, but for one control character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
