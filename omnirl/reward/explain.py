"""The steps that led to a score, as sentences for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omnirl.reward import choice, mmk12, numeric, verify
from omnirl.reward.options import Settings

_MOST = 120
_WHERE = {
    "default": "the first <answer> pair",
    "strict": "the <answer> pairs after the thinking",
    "lenient": "the first <answer> pair, whatever its notation",
}


def explain(
    response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings, scores: Mapping[str, float]
) -> tuple[str, ...]:
    """Sentences on how a response comes to its scores with a built-in scorer."""
    told = {"choice": _choice, "gsm8k": _gsm8k, "mmk12": _mmk12}[settings.scorer]
    return (*told(response, ground_truth, extra_info, settings), f"score {scores['score']:.4g}")


def _choice(response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    _, answer = choice.judge(response, ground_truth, extra_info, settings.mode)  # type: ignore[arg-type]
    yield f"the label is {_shown(choice.read_label(ground_truth))}"
    where = _WHERE[settings.mode]
    yield f"{where}: {_shown(answer)}" if answer else f"{where}: nothing"


def _gsm8k(response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    _, answer = numeric.judge(response, ground_truth, settings.mode)  # type: ignore[arg-type]
    yield f"the label is {_shown(str(ground_truth))}"
    yield f"the final answer is {_shown(str(answer))}" if answer is not None else "there is no final answer"


def _mmk12(response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    inner, _ = mmk12.split(response)
    yield f"the label is {_shown(mmk12.read_label(ground_truth))}"
    yield "the answer is the whole response" if inner is None else f"the answer is {_shown(inner)}"
    found = mmk12.judge(
        response,
        ground_truth,
        extra_info,
        verify.shared(settings.workers, settings.timeout_s),
        mode="reference" if settings.mode == "reference" else "default",
        percent=settings.percent,
        explain=True,
    )
    yield from found.steps
    accuracy, form, weight = found.accuracy, found.format, settings.format_weight
    yield f"accuracy {accuracy:g}, format {form:g}: ({accuracy:g} + {weight:g} x {form:g}) / {1 + weight:g}"


def _shown(text: str) -> str:
    return f"{text[:_MOST]!a}{' ...' if len(text) > _MOST else ''}"
