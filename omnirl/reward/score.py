"""What verl loads to score a response: one function, a table of scorers, and the same keys for every row.

Configured as the custom reward function `pkg://omnirl.reward.score`, name `compute_score`; the recipe's scorer and
options arrive as keyword arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from omnirl.errors import InvalidInput
from omnirl.reward import choice, numeric

Grade = Callable[[str, object], float]

_GRADES: dict[str, Grade] = {"gsm8k": numeric.grade, "choice": choice.grade}
_LABELS: dict[str, Callable[[object], object]] = {"gsm8k": numeric.read_label, "choice": choice.read_label}
SCORERS = tuple(_GRADES)

# verl adds these when a reward model is served beside a rule; no rule needs them.
_SERVED = frozenset({"reward_router_address", "reward_model_tokenizer"})


def compute_score(
    data_source: str,
    solution_str: str | None,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    scorer: str,
    **options: Any,
) -> dict[str, float]:
    """Score one response against its row's ground truth.

    Args:
        data_source: the row's `data_source`; names the row in errors, decides nothing.
        solution_str: the response alone, without the prompt; None (an empty rollout) scores 0.
        ground_truth: the row's `reward_model.ground_truth`.
        extra_info: the row's `extra_info`; unused.
        scorer: `gsm8k` or `choice`.
        options: none of the present scorers takes any.

    Returns:
        `{"score": s, "accuracy": a}`, both 0.0 or 1.0, in time linear in the response.

    Raises:
        InvalidInput: the scorer or an option is unknown, or the ground truth is no label for it. A fault of the row is
            never a score.
    """
    grade = _GRADES.get(scorer)
    if grade is None:
        raise _unknown(scorer)
    unknown = sorted(options.keys() - _SERVED)
    if unknown:
        raise InvalidInput(
            f"the scorer `{scorer}` takes no option `{unknown[0]}`", hint="remove it from `[reward] options`"
        )
    response = solution_str if isinstance(solution_str, str) else ""
    try:
        score = grade(response, ground_truth)
    except InvalidInput as error:
        raise InvalidInput(f"{data_source}: {error.message}", hint=error.hint) from error
    return {"score": score, "accuracy": score}


def check_label(scorer: str, ground_truth: object) -> None:
    """Raise InvalidInput when `ground_truth` is no label for the built-in `scorer`."""
    if scorer not in _LABELS:
        raise _unknown(scorer)
    _LABELS[scorer](ground_truth)


def parse_scorer(text: str) -> tuple[Literal["gsm8k", "choice"], None] | tuple[Path, str]:
    """Read a scorer setting: the name of a built-in one, or `FILE.py:function` as an absolute path and a name.

    The file is parsed, not run. Raises InvalidInput for an unknown name, an unreadable file, a missing function.
    """
    if text == "gsm8k":
        return "gsm8k", None
    if text == "choice":
        return "choice", None
    file, colon, function = text.rpartition(":")
    if not colon:
        file, function = text, ""
    if not file.endswith(".py"):
        raise _unknown(text)
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise InvalidInput(
            f"the reward file `{path}` does not exist",
            hint="a relative path starts at the folder where omnirl is called",
        )
    names = _functions(path)
    if function not in names:
        near = get_close_matches(function, names, n=1) or names[:1]
        what = f"has no function `{function}`" if function else "is named without a function"
        hint = f"write `{file}:{near[0]}`" if near else "define a function at the top level of the file"
        raise InvalidInput(f"the reward file `{path}` {what}", hint=hint)
    return path, function


def _functions(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        raise InvalidInput(f"the reward file `{path}` cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error)
        raise InvalidInput(f"the reward file is not valid Python: {reason}", where=f"{path}:{line}") from error
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names.extend(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            names.extend(alias.asname or alias.name for alias in node.names)
    return names


def _unknown(text: str) -> InvalidInput:
    near = get_close_matches(text, SCORERS, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(SCORERS)}, or FILE.py:function"
    return InvalidInput(f"no scorer is called `{text}`", hint=hint)
