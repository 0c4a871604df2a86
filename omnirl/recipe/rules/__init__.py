"""Rules across settings: what the schema cannot see and verl would say only after minutes of loading."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from omnirl.errors import InvalidInput, Problem
from omnirl.recipe.model import Recipe
from omnirl.recipe.rules import adapter, algorithm, batch, placement, upkeep
from omnirl.recipe.rules.finding import TINY, Finding, Rule

if TYPE_CHECKING:
    from omnirl.recipe.registry import Resolved

__all__ = ["RULES", "TINY", "Finding", "check", "problems", "require"]

RULES: tuple[Rule, ...] = (*batch.RULES, *algorithm.RULES, *placement.RULES, *adapter.RULES, *upkeep.RULES)


def check(resolved: Resolved) -> tuple[Problem, ...]:
    """Every broken rule of a resolved recipe, errors and warnings, each with the place of the setting."""
    return problems(resolved.recipe, resolved.where)


def require(resolved: Resolved) -> tuple[Problem, ...]:
    """Raise if a rule is broken; otherwise return the warnings.

    Raises:
        InvalidInput: with every problem.
    """
    found = check(resolved)
    errors = sum(problem.severity == "error" for problem in found)
    if errors:
        count = f"{errors} problem{'s' if errors > 1 else ''}"
        raise InvalidInput(
            f"recipe `{resolved.task}` on `{resolved.hardware}` cannot run ({count})",
            hint=f"omnirl recipe show {resolved.task} --on {resolved.hardware} --origin",
            problems=found,
        )
    return found


def problems(
    recipe: Recipe, where: Callable[[str], str | None], doubtful: frozenset[str] = frozenset()
) -> tuple[Problem, ...]:
    """Broken rules of a recipe, leaving out the ones that involve a doubtful setting or table."""
    found = [finding for rule in RULES for finding in rule(recipe)]
    return tuple(
        Problem(
            f.code, f.message + _environment(f, where), f.severity, key=f.keys[0], where=where(f.keys[0]), hint=f.hint
        )
        for f in found
        if not any(key == other or key.startswith(f"{other}.") for key in f.keys for other in doubtful)
    )


def _environment(finding: Finding, where: Callable[[str], str | None]) -> str:
    """Names the variables that took part: who has forgotten one would look for the mistake in a file."""
    others = ((key, where(key) or "") for key in finding.keys[1:])
    return "".join(f"; `{key}` is from {place}" for key, place in others if place.startswith("env "))
