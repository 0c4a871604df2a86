"""A run's folder: names, states, attempts, and what strangers may have left in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake
from omnirl.run import record
from omnirl.run.record import Run
from tests.conftest import plain_environment

DOCUMENT = {"task": "toy", "hardware": "cpu", "algo": "gspo", "created": "2026-11-30T00:00:00+00:00"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = record.reserve(tmp_path / "runs", None, stem="toy")
    run.write(DOCUMENT, {"values": {}}, ["a=1", "+b=2"])
    return run


def test_names_count_up_past_what_is_there(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "runs"
    assert record.reserve(root, None, stem="toy-cpu").name == "toy-cpu-1"
    (root / "toy-cpu-9").mkdir()
    (root / "toy-cpu-x").mkdir()
    assert record.reserve(root, None, stem="toy-cpu").name == "toy-cpu-10"


def test_a_taken_name_is_a_usage_mistake_with_the_way_on(tmp_path: Path) -> None:
    record.reserve(tmp_path, "mine", stem="x")
    with pytest.raises(UsageMistake, match="already something") as caught:
        record.reserve(tmp_path, "mine", stem="x")
    assert "--resume --name mine" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-x", ".hidden", "a b", "x\n"])
def test_names_that_cannot_be_folders_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageMistake, match="cannot name a run"):
        record.reserve(tmp_path, name, stem="x")
    assert list(tmp_path.iterdir()) == []


def test_a_reserved_folder_goes_when_nothing_came_of_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), record.reserved(tmp_path, "a", stem="x") as run:
        (run.path / "data").mkdir()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError), record.reserved(tmp_path, "a", stem="x") as run:
        run.write(DOCUMENT, {"values": {}}, [])
        run.new_attempt("tag")
        raise RuntimeError
    assert (tmp_path / "a" / "run.json").is_file()


def test_attempts_are_numbered_and_latest_points_at_the_last(run: Run) -> None:
    first, second = run.new_attempt("one"), run.new_attempt("two")
    assert (first.number, second.number, first.tag, second.tag) == (1, 2, "one", "two")
    assert (run.path / "latest").resolve() == second.path.resolve()
    assert run.document()["attempt"] == 2
    assert (second.path / "overrides.txt").read_text() == "a=1\n+b=2\n"
    assert not list(run.path.rglob("*.partial"))


def test_states(run: Run) -> None:
    assert run.state() == "new"
    attempt = run.new_attempt("tag")
    assert run.state() == "interrupted"
    for state in ("failed", "interrupted", "done"):
        attempt.finish(state, 0, step=3, seconds=1.0)
        assert run.state() == state
    with run.lock():
        assert run.state() == "running"
    assert run.state() == "done"
    (attempt.path / "exit.json").write_text('{"state": "do')
    assert run.state() == "interrupted"


def test_two_at_once_are_refused_and_a_dead_ones_lock_is_free(run: Run) -> None:
    script = f"""
import sys
from pathlib import Path
from omnirl.run.record import Run
with Run(Path({str(run.path)!r})).lock():
    print("held", flush=True)
    sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=plain_environment(),
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert run.state() == "running"
        with pytest.raises(EnvironmentLacks, match="in use by another omnirl"), run.lock():
            pass
    finally:
        holder.kill()
        holder.communicate()
    with run.lock():
        pass


def test_listing_leaves_strangers_out(run: Run) -> None:
    root = run.path.parent
    (root / "empty").mkdir()
    (root / "file").write_text("x")
    (root / "damaged").mkdir()
    (root / "damaged" / "run.json").write_text('{"schema": "omnirl/run/1", "na')
    (root / "foreign").mkdir()
    (root / "foreign" / "run.json").write_text(json.dumps({"schema": "other/1"}))
    (root / "list").mkdir()
    (root / "list" / "run.json").write_text("[1]")
    (root / "binary").mkdir()
    (root / "binary" / "run.json").write_bytes(b"\xff\xfe\x00")
    (root / "link").symlink_to(run.path)
    assert [found.name for found in record.runs(root)] == [run.name]
    assert record.runs(root / "nowhere") == []


def test_a_run_is_found_by_name_and_by_folder(run: Run) -> None:
    assert record.find(run.path.parent, run.name).path == run.path
    assert record.find(Path("/nowhere"), str(run.path)).path == run.path
    with pytest.raises(InvalidInput, match="no run") as caught:
        record.find(run.path.parent, "toyy-1")
    assert caught.value.hint == f"did you mean `{run.name}`?"


def test_a_folder_that_cannot_be_made_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        record.reserve(tmp_path / "file", None, stem="x")


def test_a_damaged_recipe_is_an_input_error(run: Run) -> None:
    (run.path / "recipe.json").write_text("{")
    with pytest.raises(InvalidInput, match="missing or damaged"):
        run.recipe()
