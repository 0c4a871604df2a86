"""The names of scorers, and scorers of the user's own: `FILE.py:function`."""

from __future__ import annotations

import ast
from difflib import get_close_matches
from pathlib import Path

from omnirl.errors import InvalidInput

SCORERS = ("gsm8k", "choice", "mmk12")


def parse_scorer(text: str) -> tuple[str, None] | tuple[Path, str]:
    """Read a scorer setting: the name of a built-in one, or `FILE.py:function` as an absolute path and a name.

    The file is parsed, not run. Raises InvalidInput for an unknown name, an unreadable file, a missing function.
    """
    if text in SCORERS:
        return text, None
    file, colon, function = text.rpartition(":")
    if not colon:
        file, function = text, ""
    if not file.endswith(".py"):
        raise unknown(text)
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


def unknown(text: str) -> InvalidInput:
    """The error for a scorer of no known name."""
    near = get_close_matches(text, SCORERS, n=1)
    hint = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(SCORERS)}, or FILE.py:function"
    return InvalidInput(f"no scorer is called `{text}`", hint=hint)


def _functions(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except OSError as error:
        raise InvalidInput(f"the reward file `{path}` cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
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
