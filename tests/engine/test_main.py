"""What the engine's process does before verl starts, and what it says when something fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnirl.engine import main
from omnirl.errors import Exit, InvalidInput
from tests.conftest import plain_environment


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class RayTaskError(Exception):
    """As Ray's: the remote traceback for text, and the remote exception as `cause`."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("ray::run()\n  File x.py, line 3\nsomething else")
        self.cause = cause


def test_the_innermost_cause_is_told() -> None:
    wrong = InvalidInput("cannot read `a.png` as an image", hint="convert the data again")
    for error in (wrong, RayTaskError(wrong), caused(RuntimeError("outer"), RayTaskError(caused(ValueError(), wrong)))):
        assert main.explain(error) == {
            "message": "cannot read `a.png` as an image",
            "hint": "convert the data again",
        }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("first line\nlast line\n\n"), "ValueError: last line"),
        (KeyError("weights"), "KeyError: 'weights'"),
        (ValueError(), "ValueError"),
        (RuntimeError("remote traceback\nRuntimeError: it broke"), "RuntimeError: it broke"),
        (RayTaskError(ValueError("remote")), "ValueError: remote"),
    ],
)
def test_other_errors_bring_their_name(error: BaseException, message: str) -> None:
    assert main.explain(error) == {"message": message, "hint": None}


def test_a_circle_of_causes_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert main.explain(one)["message"] in ("ValueError: one", "ValueError: two")


def test_a_real_error_of_ray_is_seen_through() -> None:
    from ray.exceptions import RayTaskError as Real

    error = Real("run", "Traceback\nValueError: too small", ValueError("too small")).as_instanceof_cause()
    assert main.explain(error)["message"] == "ValueError: too small"


@pytest.fixture
def recipe(run_folder: Path) -> dict[str, Any]:
    values = json.loads((run_folder / "recipe.json").read_text())["values"]
    values["model"]["tiny"]["warmup_steps"] = 0
    return values


def test_a_model_folder_is_used_where_it_lies(tmp_path: Path, recipe: dict[str, Any]) -> None:
    recipe["model"]["path"] = str(tmp_path / "model")
    assert main.prepare_model(tmp_path, recipe) == (tmp_path / "model").resolve()
    assert not any(tmp_path.iterdir())


def test_the_tiny_model_is_built_once(tmp_path: Path, recipe: dict[str, Any]) -> None:
    half_built = tmp_path / "model"
    half_built.mkdir()
    (half_built / "config.json").write_text("{")
    folder = main.prepare_model(tmp_path, recipe)
    assert folder == half_built
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json", "ready"} & set(
        written
    ) >= {"config.json", "model.safetensors", "tokenizer.json", "ready"}
    assert main.prepare_model(tmp_path, recipe) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written


def test_the_tiny_model_can_be_had_as_it_is_made(tmp_path: Path, recipe: dict[str, Any]) -> None:
    recipe["model"]["tiny"]["warmup_steps"] = 1000
    folder = main.prepare_model(tmp_path, recipe, warm_up=False)
    assert (folder / "ready").is_file()
    assert not (folder / "warmup.json").exists()


def test_a_failure_is_explained_in_the_attempts_folder(tmp_path: Path, run_folder: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    (run / "attempts" / "1").mkdir(parents=True)
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**document, "attempt": 1}))
    recipe = json.loads((run / "recipe.json").read_text())
    recipe["values"]["data"]["train"] = [str(tmp_path / "absent.parquet")]
    (run / "recipe.json").write_text(json.dumps(recipe))
    done = subprocess.run(
        [sys.executable, "-m", "omnirl.engine.main", str(run)],
        env=plain_environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == Exit.CHILD
    assert "Traceback" in done.stderr
    error = json.loads((run / "attempts" / "1" / "error.json").read_text())
    assert "absent.parquet" in error["message"]
    assert json.loads((run / "attempts" / "1" / "phase.json").read_text())["phase"] == "model"
