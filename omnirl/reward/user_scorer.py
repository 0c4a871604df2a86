"""What calls a scorer of the user's own, in a worker process of its own (see `worker`), as verl calls it.

    {"data_source": ..., "solution_str": ..., "ground_truth": ..., "extra_info": ..., "options": {...}}
        -> {"scores": {"score": 1.0, ...}} or {"error": "ValueError: ...", "where": "FILE:LINE"}

The file is loaded by its path under a name that no installed module has, and is not put into `sys.modules`: verl does
the same. The working folder is searched last for what the file imports. The function runs in a thread that is not the
main one, as in training: a scorer that needs signals fails here too.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def prepare(file: str, function: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Load the file; returns what answers a request. A first request may be `{"trial": options}`."""
    sys.path.append(str(Path.cwd()))
    path = Path(file)
    threads = ThreadPoolExecutor(1)
    loaded = threads.submit(_load, path, function)
    broken = loaded.exception()
    if broken is not None:
        fault = f"{type(broken).__name__}: {broken}", _where(broken, path)
        return lambda _: {"error": fault[0], "where": fault[1], "loading": True}
    score = loaded.result()

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        options = request.pop("options")
        if "trial" in request:
            row = dict.fromkeys(("data_source", "solution_str", "ground_truth", "extra_info"))
            called = threads.submit(inspect.signature(score).bind, **row, **options)
            error = called.exception()
            return {"scores": {}} if error is None else {"error": f"{function}() {error}", "where": str(path)}
        done = threads.submit(_call, score, {**request, **options})
        error = done.exception()
        if error is None:
            return _read(done.result(), function, path)
        return {"error": f"{type(error).__name__}: {error}"[:500], "where": _where(error, path)}

    return respond


def _load(path: Path, function: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"_scorer_{os.getpid()}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, function)
    if not callable(found):
        raise TypeError(f"{function} is no function")
    return found


def _call(score: Any, row: dict[str, Any]) -> Any:
    found = score(**row)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def _read(found: Any, function: str, path: Path) -> dict[str, Any]:
    """The scores in what the function gave back: a number, or a mapping with a number as `score`."""
    scores = dict(found) if isinstance(found, Mapping) else {"score": found}
    numbers = {str(name): _number(value) for name, value in scores.items()}
    if numbers.get("score") is None:
        error = (
            f"{function}() gave {str(found)[:200]!a}; a finite number, or a dictionary with one as `score`, is needed"
        )
        return {"error": error, "where": str(path)}
    return {"scores": {name: value for name, value in numbers.items() if value is not None}}


def _number(value: Any) -> float | None:
    """A finite float; None for anything else. numpy's and torch's numbers have `item`."""
    value = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _where(error: BaseException, path: Path) -> str:
    """The innermost line of the user's file that the error passed through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = frames[-1].lineno if frames else getattr(error, "lineno", None)
    return f"{path}:{line}" if line else str(path)
