"""What verl loads to score a response: one function, a table of scorers, and the same keys for every row.

Configured as the custom reward function `pkg://omnirl.reward.score`, name `compute_score`; the recipe's scorer and
options arrive as keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.reward import choice, mmk12, numeric, outcome, verify
from omnirl.reward.options import Settings, read_settings
from omnirl.reward.scorers import SCORERS, parse_scorer, unknown

__all__ = ["SCORERS", "check_label", "check_options", "compute_score", "judge", "parse_scorer"]

# verl adds these when a reward model is served beside a rule; no rule needs them.
_SERVED = frozenset({"reward_router_address", "reward_model_tokenizer"})

Judge = Callable[[str, object, Mapping[str, Any], Settings], "tuple[dict[str, float], tuple[str, ...]]"]


def compute_score(
    data_source: str,
    solution_str: str | None,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    scorer: str,
    **options: Any,
) -> dict[str, float]:
    """Score one response against its row's ground truth. May be called from any thread.

    Args:
        data_source: the row's `data_source`; names the row in errors, decides nothing.
        solution_str: the response alone, without the prompt; None (an empty rollout) scores 0.
        ground_truth: the row's `reward_model.ground_truth`.
        extra_info: the row's `extra_info`; its `options` are the texts of a choice.
        scorer: one of `SCORERS`.
        options: what `omnirl.reward.options` lists for the scorer.

    Returns:
        A number for each of `outcome.KEYS`, the same ones for every scorer and row; `score` and `accuracy` in [0, 1].

    Raises:
        InvalidInput: the scorer or an option is unknown, or the ground truth is no label for it. A fault of the row is
            never a score.
        EnvironmentLacks: `mmk12` without a math-verify that works.
        ChildFailed: too large a share of what this process scored were faults of the scorer.
    """
    response = solution_str if isinstance(solution_str, str) else ""
    quick = None if options else _QUICK.get(scorer)
    if quick is not None:
        try:
            right, answer = quick(response, ground_truth)
        except InvalidInput as error:
            raise _in_row(data_source, error) from error
        return (_RIGHT if right else _UNANSWERED if answer is None else _WRONG).copy()
    settings = _settings(scorer, options)
    scores, steps = judge(data_source, response, ground_truth, extra_info, settings)
    if scorer == "mmk12":
        came = outcome.named(scores)
        if came is not None:
            _watch(settings.max_scorer_error_share).saw(came, steps[-1] if steps else "", response, ground_truth)
    return scores


def judge(
    data_source: str, response: str, ground_truth: object, extra_info: Mapping[str, Any] | None, settings: Settings
) -> tuple[dict[str, float], tuple[str, ...]]:
    """The scores of one response and the steps that led to them; raises what `compute_score` does, save ChildFailed."""
    try:
        return _JUDGES[settings.scorer](response, ground_truth, extra_info or {}, settings)
    except InvalidInput as error:
        raise _in_row(data_source, error) from error


def check_label(scorer: str, ground_truth: object) -> None:
    """Raise InvalidInput when `ground_truth` is no label for the built-in `scorer`. Starts no process."""
    if scorer not in _LABELS:
        raise unknown(scorer)
    _LABELS[scorer](ground_truth)


def check_options(scorer: str, options: Mapping[str, Any]) -> None:
    """Raise InvalidInput when the built-in `scorer` does not take these options, or not with these values."""
    _settings(scorer, options)


def _in_row(data_source: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(f"{data_source}: {error.message}", hint=error.hint)


def _settings(scorer: str, options: Mapping[str, Any]) -> Settings:
    if not options:
        known = _plain.get(scorer)
        if known is not None:
            return known
    if scorer not in _JUDGES:
        raise unknown(scorer)
    given = tuple(sorted((name, value) for name, value in options.items() if name not in _SERVED))
    try:
        return _cached(scorer, given)
    except TypeError:  # a list as a value
        return read_settings(scorer, dict(given))


@lru_cache(maxsize=64)
def _cached(scorer: str, given: tuple[tuple[str, Any], ...]) -> Settings:
    return read_settings(scorer, dict(given))


@lru_cache(maxsize=8)
def _watch(max_share: float) -> outcome.Watch:
    return outcome.Watch(max_share)


def _choice(
    response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, float], tuple[str, ...]]:
    right, answer = choice.judge(response, ground_truth, extra_info, settings.mode)  # type: ignore[arg-type]
    return dict(_RIGHT if right else _WRONG if answer is not None else _UNANSWERED), ()


def _gsm8k(
    response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, float], tuple[str, ...]]:
    right, answer = numeric.judge(response, ground_truth, settings.mode)  # type: ignore[arg-type]
    return dict(_RIGHT if right else _WRONG if answer is not None else _UNANSWERED), ()


def _mmk12(
    response: str, ground_truth: object, extra_info: Mapping[str, Any], settings: Settings
) -> tuple[dict[str, float], tuple[str, ...]]:
    found = mmk12.judge(
        response,
        ground_truth,
        extra_info,
        verify.shared(settings.workers, settings.timeout_s),
        mode="reference" if settings.mode == "reference" else "default",
        percent=settings.percent,
    )
    score = mmk12.score(found.accuracy, found.format, settings.format_weight)
    return outcome.row(score, found.accuracy, found.format, found.outcome), found.steps


_RIGHT = outcome.row(1.0, 1.0, 1.0, "scored")
_WRONG = outcome.row(0.0, 0.0, 1.0, "wrong")
_UNANSWERED = outcome.row(0.0, 0.0, 0.0, "wrong")
# What a recipe without options calls for every response of a run.
_QUICK: dict[str, Callable[[str, object], tuple[bool, object]]] = {"choice": choice.judge, "gsm8k": numeric.judge}
_JUDGES: dict[str, Judge] = {"choice": _choice, "gsm8k": _gsm8k, "mmk12": _mmk12}
_LABELS: dict[str, Callable[[object], object]] = {
    "choice": choice.read_label,
    "gsm8k": numeric.read_label,
    "mmk12": mmk12.read_label,
}
_plain = {name: read_settings(name, {}) for name in SCORERS}
