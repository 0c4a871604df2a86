"""Types of single settings: their bounds, and the checks that a type alone cannot make."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

SCORERS = ("choice", "gsm8k", "mmk12")
"""Scorers that come with omnirl; any other is `FILE.py:function`."""
NO_SCORER = "none"
"""The scorer of training that scores no response."""
NO_ENGINE = "none"
"""The rollout engine of training that generates no response."""

_CUSTOM_SCORER = re.compile(r".+\.py:[A-Za-z_]\w*")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*")

Modality = Literal["text", "image", "audio", "video"]
Evidence = Literal["planned", "smoke", "verified"]
Dtype = Literal["fp32", "float32", "bf16", "bfloat16", "fp16", "float16"]
LossAggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _never_or_every(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("must be -1 (never) or at least 1")
    return value


def _known_scorer(value: str) -> str:
    if value not in (*SCORERS, NO_SCORER) and not _CUSTOM_SCORER.fullmatch(value):
        known = ", ".join(f"`{name}`" for name in SCORERS)
        raise ValueError(f"must be one of {known} or `FILE.py:function`, not `{value}`")
    return value


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"`{name}` cannot be the name of an environment variable")
        if "\0" in text:
            raise ValueError(f"the value of `{name}` holds a NUL character")
    return value


def _rising(value: list[float]) -> list[float]:
    if value[0] > value[1]:
        raise ValueError(f"must be a least and a most, not {value[0]:g} before {value[1]:g}")
    return value


Files = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_one_or_many)]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Every = Annotated[int, AfterValidator(_never_or_every)]
Range = Annotated[list[Count], Field(min_length=2, max_length=2), AfterValidator(_rising)]
"""The least and the most of something that is counted."""
Scorer = Annotated[str, AfterValidator(_known_scorer)]
Environment = Annotated[dict[str, str], AfterValidator(_environment)]


class Table(BaseModel):
    """A table of settings: nothing unknown in it, never changed, no value of one type taken for another."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


def finite(value: Any) -> bool:
    """Whether a value from TOML can be written as JSON: no dates, no infinities."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(finite(item) for item in value)
    if isinstance(value, dict):
        return all(finite(item) for item in value.values())
    return isinstance(value, bool | int | str)
