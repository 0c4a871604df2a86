"""Scorers of the user's own, `FILE.py:function`: tried before a run, and called row by row, in a fresh process.

It is code that the user chose to run, with the user's rights. The process keeps a scorer that hangs or crashes from
taking the caller with it; it is no sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput
from omnirl.reward.outcome import Outcome
from omnirl.reward.pool import Died, Pool, TimedOut

TIMEOUT_S = 60.0


class UserScorer:
    """One function of a file, called in a process that is replaced when it hangs or ends.

    Args:
        path: the file, absolute.
        function: its name in the file.
        options: further keyword arguments for every call.
        timeout_s: for one response.
    """

    def __init__(
        self, path: Path, function: str, options: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._name = f"{path}:{function}"
        self._options = dict(options or {})
        self._timeout_s = timeout_s
        handler = ("user_scorer.py", str(path), function)
        self._pool = Pool(handler, size=1, what=f"the scorer `{self._name}`", error=InvalidInput)

    def check(self) -> None:
        """Raise InvalidInput when the file does not load or the function does not take verl's arguments."""
        self._ask({"trial": True})

    def judge(
        self, data_source: str, response: str | None, ground_truth: object, extra_info: Mapping[str, Any] | None
    ) -> tuple[dict[str, float], Outcome, tuple[str, ...]]:
        """The numbers that the function gives for a response, the outcome, and what went wrong.

        Raises InvalidInput when the file does not load.
        """
        row = {
            "data_source": data_source,
            "solution_str": response,
            "ground_truth": ground_truth,
            "extra_info": dict(extra_info or {}),
        }
        try:
            scores = self._ask(row)
        except TimedOut:
            return {"score": 0.0}, "timeout", (f"no score within {self._timeout_s:g} s; the process is replaced",)
        except Died as died:
            return {"score": 0.0}, "scorer_error", (f"its process ended with {died.code}, twice",)
        except _Failed as failed:
            return {"score": 0.0}, "scorer_error", (str(failed),)
        return scores, "scored" if scores.get("accuracy", scores.get("acc", scores["score"])) > 0 else "wrong", ()

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    def _ask(self, request: dict[str, Any]) -> dict[str, float]:
        said = self._pool.ask({**request, "options": self._options}, self._timeout_s)
        if "error" not in said and "fault" not in said:
            scores: dict[str, float] = said["scores"]
            return scores
        error = str(said.get("error") or said.get("fault"))
        if said.get("loading") or "trial" in request:
            raise InvalidInput(f"the scorer `{self._name}` cannot be used: {error}", where=said.get("where"))
        raise _Failed(f"{said.get('where')}: {error}")


class _Failed(Exception):
    """The function raised, or gave no score."""


def check_scorer(
    path: Path,
    function: str,
    *,
    options: Mapping[str, Any] | None = None,
    trial: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Load a scorer in a fresh process and call it once, as training will.

    Args:
        path: the file, absolute.
        function: its name in the file.
        options: the recipe's `[reward] options`.
        trial: a row of the training data (`data_source`, `reward_model`, `extra_info`) to score an empty response
            for. Without one only the function's parameters are looked at.
        timeout_s: for the one call.

    Raises:
        InvalidInput: what is wrong, with file and line where there is one.
    """
    scorer = UserScorer(path, function, options, timeout_s=timeout_s)
    try:
        scorer.check()
        if trial is None:
            return
        truth = (trial.get("reward_model") or {}).get("ground_truth")
        _, outcome, steps = scorer.judge(str(trial.get("data_source")), "", truth, trial.get("extra_info"))
        if outcome in ("timeout", "scorer_error"):
            raise InvalidInput(f"the scorer `{path}:{function}` fails on a row of the data: {steps[0]}")
    except TimedOut:
        raise InvalidInput(f"the scorer `{path}:{function}` does not answer within {timeout_s:g} s") from None
    except Died as died:
        raise InvalidInput(f"the scorer `{path}:{function}` ends its process (exit code {died.code})") from died
    finally:
        scorer.close()
