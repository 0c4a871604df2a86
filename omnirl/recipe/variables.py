"""Environment variables that the documented launchers take, as a layer of settings above the recipe's.

Nothing here reads `os.environ`: who wants the variables to count passes them in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omnirl.recipe.layers import DOTTED, Layer, Setting
from omnirl.recipe.source import Key

_INT = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable and what it takes the place of.

    Attributes:
        setting: the dotted setting; empty where it only takes the place of `option`.
        option: the option of `train` that it stands for as well.
        turn: reads its text; text that cannot be read is left as it is, for the schema to refuse.
        also: what follows it where the recipe sets that.
    """

    name: str
    meaning: str
    setting: str = ""
    option: str = ""
    turn: Callable[[str], Any] = str
    also: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """What `--origin` and errors call it."""
        return f"env {self.name}"

    @property
    def key(self) -> Key:
        """The setting's path in a layer."""
        return tuple(self.setting.split("."))


def _whole(text: str) -> Any:
    return int(text) if _INT.fullmatch(text) else text


def _number(text: str) -> Any:
    return float(text) if _FLOAT.fullmatch(text) else text


def _files(text: str) -> Any:
    """One file; more of them as a list in brackets."""
    if text.startswith("["):
        try:
            return tomllib.loads(f"files = {text}")["files"]
        except tomllib.TOMLDecodeError:
            return text
    return text


VARIABLES: tuple[Variable, ...] = (
    Variable("MODEL_PATH", "checkpoint folder or hub name", "model.path"),
    Variable("TRAIN_FILE", 'training file, or `["A", "B"]`', "data.train", turn=_files),
    Variable("VAL_FILE", 'validation file, or `["A", "B"]`', "data.val", turn=_files),
    Variable("N_GPUS_PER_NODE", "devices in each machine", "hardware.devices_per_node", turn=_whole),
    Variable("NNODES", "machines, a teacher's included", "hardware.nodes", turn=_whole),
    Variable("ROLLOUT_TP", "devices a copy of the rollout engine", "rollout.tensor_parallel", turn=_whole),
    Variable("TRAIN_BATCH_SIZE", "prompts a step", "batch.prompts", turn=_whole),
    Variable("ROLLOUT_N", "responses a prompt", "batch.group_size", turn=_whole),
    Variable("TOTAL_TRAINING_STEPS", "steps to stop after", "train.steps", turn=_whole),
    Variable("LEARNING_RATE", "peak learning rate", "optim.learning_rate", turn=_number),
    Variable("ROLLOUT_MEMORY_FRACTION", "share of a device's memory", "rollout.memory_fraction", turn=_number),
    Variable(
        "ROLLOUT_MAX_NUM_SEQS",
        "sequences that the engine runs at once; captured graphs follow",
        "rollout.max_sequences",
        turn=_whole,
        also=("rollout.options.max_num_seqs", "rollout.capture_sizes"),
    ),
    Variable("EXPERIMENT_NAME", "the run's name", f"{DOTTED}.trainer.experiment_name", "--name"),
    Variable("OUTPUT_DIR", "folder where runs are kept", "", "--runs"),
)  # fmt: skip
"""Every variable that counts; README has the same table."""


def given(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of the table that are set, in its order; blank ones do not count."""
    return {v.name: text for v in VARIABLES if (text := environment.get(v.name, "").strip())}


def layer(variables: Mapping[str, str], below: Layer) -> Layer:
    """The settings that `variables` give.

    Args:
        variables: text by name; names that are not in the table do not count.
        below: the recipe's settings, for what follows another setting.
    """
    found: dict[Key, Setting] = {}
    texts = given(variables)
    for variable in VARIABLES:
        if variable.name not in texts or not variable.setting:
            continue
        value = variable.turn(texts[variable.name])
        found[variable.key] = Setting(value, variable.origin)
        for follower in variable.also:
            key = tuple(follower.split("."))
            if key in below and isinstance(value, int) and value > 0:
                found[key] = Setting(_followed(below[key].value, value), variable.origin)
    return found


def in_effect(variables: Mapping[str, str], origins: Mapping[str, Setting]) -> tuple[list[Variable], list[Variable]]:
    """Of the variables that stand for settings: those that gave a resolved recipe's value, and those that did not."""
    mine = [v for v in VARIABLES if v.setting and v.name in given(variables)]
    used = [v for v in mine if v.setting in origins and origins[v.setting].origin == v.origin]
    return used, [v for v in mine if v not in used]


def _followed(value: Any, limit: int) -> Any:
    """A list of sizes ends at the limit; a number is the limit."""
    if isinstance(value, list):
        return [*(size for size in value if isinstance(size, int) and size < limit), limit]
    return limit
