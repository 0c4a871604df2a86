"""A Thinker's dimensions and parameter counts, from a config.json; no weights and no torch are needed.

The released checkpoint and the tiny one are known (`dimensions.json`, written by `python -m omnirl.engine.dimensions`).
A folder's own config.json is read where there is one, and the headers of its safetensors files, which count exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.plan import model_folder
from omnirl.recipe.rules.finding import TINY

_KNOWN = Path(__file__).with_name("dimensions.json")
_MOST = 1 << 24
"""No dimension is larger; a hostile file must not make the arithmetic endless."""


@dataclass(frozen=True, slots=True)
class Text:
    """The language model: `layers` of attention and experts. `vocabulary` is the number of logits."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    experts: int
    experts_per_token: int
    expert_width: int

    @property
    def attention_parameters(self) -> int:
        """q, k, v, o and the norms of q and k, of one layer."""
        queries, keys = self.heads * self.head_dim, self.key_value_heads * self.head_dim
        return 2 * self.hidden * (queries + keys) + 2 * self.head_dim

    @property
    def expert_parameters(self) -> int:
        """All experts of one layer: gate, up and down projections."""
        return self.experts * 3 * self.hidden * self.expert_width

    @property
    def layer_parameters(self) -> int:
        """Attention, experts, router and the two norms."""
        return self.attention_parameters + self.expert_parameters + self.experts * self.hidden + 2 * self.hidden

    @property
    def head_parameters(self) -> int:
        """The output projection; the input embedding is as large."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + 2 * self.head_parameters + self.hidden

    @property
    def key_value_elements(self) -> int:
        """Elements of the key-value cache, a token."""
        return 2 * self.layers * self.key_value_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Vision:
    """The vision tower. `merge` patches a side become one token; `deepstack` layers hand features on."""

    depth: int
    hidden: int
    width: int
    output: int
    patch_values: int
    positions: int
    merge: int
    deepstack: int

    @property
    def parameters(self) -> int:
        hidden, merged = self.hidden, self.hidden * self.merge**2
        block = 4 * hidden + 4 * (hidden * hidden + hidden) + 2 * hidden * self.width + self.width + hidden
        mixer = merged * merged + merged + self.output * merged + self.output
        embeddings = hidden * self.patch_values + hidden + self.positions * hidden
        return embeddings + self.depth * block + (1 + self.deepstack) * mixer + 2 * hidden + self.deepstack * 2 * merged

    @property
    def patches_per_token(self) -> int:
        return self.merge**2


@dataclass(frozen=True, slots=True)
class Audio:
    """The audio tower: three strided convolutions, then encoder layers."""

    hidden: int
    layers: int
    width: int
    output: int
    mel_bins: int
    channels: int

    FRAMES_PER_TOKEN = 100 / 13
    """The convolutions turn 100 mel frames, a second of sound, into 13 tokens."""

    @property
    def parameters(self) -> int:
        hidden, channels = self.hidden, self.channels
        convolutions = 10 * channels + 2 * (9 * channels * channels + channels)
        rows = -(-self.mel_bins // 8)
        layer = 4 * (hidden * hidden + hidden) + 4 * hidden + 2 * hidden * self.width + self.width + hidden
        ends = 2 * hidden + hidden * hidden + hidden + self.output * hidden + self.output
        return convolutions + rows * channels * hidden + self.layers * layer + ends


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Thinker.

    Attributes:
        source: where the dimensions are from, for the reader.
        counted: parameters as the safetensors headers count them; None where there are no such files.
    """

    text: Text
    vision: Vision
    audio: Audio
    source: str
    counted: int | None = None

    @property
    def parameters(self) -> int:
        """Parameters of the Thinker, its towers included."""
        return self.counted or self.text.parameters + self.vision.parameters + self.audio.parameters

    @property
    def active_parameters(self) -> int:
        """Parameters of the language model that one token goes through."""
        text = self.text
        idle = text.expert_parameters * (text.experts - text.experts_per_token) // text.experts
        return text.parameters - text.layers * idle


def of(path: str) -> Architecture:
    """The Thinker of a recipe's `model.path`: a folder with a config.json, `tiny`, or else the released one.

    A hub name is taken for the released checkpoint, whatever it says: nothing is downloaded to plan.

    Raises:
        InvalidInput: the folder's config.json is no configuration of a Qwen3-Omni.
    """
    if path == TINY:
        return known("tiny")
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        config = model_folder.config(folder)
        found = parse(config, source=f"`{folder / 'config.json'}`")
        counted = model_folder.parameters(folder, prefix="thinker." if "thinker_config" in config else "")
        return replace(found, counted=counted) if counted else found
    return known("released")


@cache
def known(name: str) -> Architecture:
    """The `released` or the `tiny` checkpoint."""
    return parse(_document()[name], source=f"the {name} checkpoint")


def released_parameters() -> dict[str, int]:
    """Parameters of the whole released checkpoint by part: thinker, talker, code2wav."""
    return dict(_document()["parameters"])


@cache
def _document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_KNOWN.read_text(encoding="utf-8"))
    return found


def parse(config: Mapping[str, Any], *, source: str) -> Architecture:
    """The architecture in a config.json of a whole Qwen3-Omni or of its Thinker alone.

    Raises:
        InvalidInput: a part or a number is missing, or is none.
    """
    thinker = config.get("thinker_config", config)
    text, vision, audio = (_Numbers(thinker, name, source) for name in ("text_config", "vision_config", "audio_config"))
    heads = text("num_attention_heads")
    return Architecture(
        text=Text(
            vocabulary=text("vocab_size"),
            hidden=text("hidden_size"),
            layers=text("num_hidden_layers"),
            heads=heads,
            key_value_heads=text("num_key_value_heads"),
            head_dim=text("head_dim", text("hidden_size") // heads),
            experts=text("num_experts"),
            experts_per_token=text("num_experts_per_tok"),
            expert_width=text("moe_intermediate_size"),
        ),
        vision=Vision(
            depth=vision("depth"),
            hidden=vision("hidden_size"),
            width=vision("intermediate_size"),
            output=vision("out_hidden_size"),
            patch_values=vision("in_channels", 3) * vision("temporal_patch_size", 2) * vision("patch_size") ** 2,
            positions=vision("num_position_embeddings"),
            merge=vision("spatial_merge_size"),
            deepstack=len(_list(thinker["vision_config"].get("deepstack_visual_indexes"))),
        ),
        audio=Audio(
            hidden=audio("d_model"),
            layers=audio("encoder_layers"),
            width=audio("encoder_ffn_dim"),
            output=audio("output_dim"),
            mel_bins=audio("num_mel_bins"),
            channels=audio("downsample_hidden_size"),
        ),
        source=source,
    )


class _Numbers:
    """Reads whole positive numbers from one table of a configuration."""

    def __init__(self, thinker: Any, name: str, source: str) -> None:
        table = thinker.get(name) if isinstance(thinker, dict) else None
        if not isinstance(table, dict):
            raise InvalidInput(f"{source} has no `{name}`: it is no Qwen3-Omni", hint="give a Qwen3-Omni checkpoint")
        self._table, self._name, self._source = table, name, source

    def __call__(self, key: str, default: int | None = None) -> int:
        value = self._table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST:
            raise InvalidInput(f"{self._source}: `{self._name}.{key}` is {value!r}, not a number from 1 to {_MOST}")
        return value


def _list(value: Any) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []
