"""Failures are noted by many processes and read once each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omnirl.engine.failures import ENGINE, MEDIA, Failures, named, note
from omnirl.engine.phase import ATTEMPT_DIR
from tests.engine.conftest import python


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ATTEMPT_DIR, str(tmp_path))
    return tmp_path


def test_each_failure_is_read_once(attempt: Path) -> None:
    failures = Failures()
    assert failures.new() == []
    note("row 1: cannot read `a.png`")
    note("row 1: cannot read `a.png`")
    note("row 2: cannot decode\n  `b.mp4`")
    assert failures.new() == ["row 1: cannot read `a.png`", "row 2: cannot decode `b.mp4`"]
    assert failures.new() == []
    note("row 1: cannot read `a.png`")
    assert failures.new() == ["row 1: cannot read `a.png`"]


def test_what_the_engine_said_is_apart(attempt: Path) -> None:
    media, engine = Failures(), Failures(ENGINE)
    note("the rollout engine died: its process ended", ENGINE)
    assert media.new() == []
    assert engine.new() == ["the rollout engine died: its process ended"]


def test_half_a_line_waits(attempt: Path) -> None:
    failures = Failures()
    note("row 1: é")
    whole = (attempt / MEDIA).read_bytes()
    (attempt / MEDIA).write_bytes(whole[:-4])
    assert failures.new() == []
    (attempt / MEDIA).write_bytes(whole)
    assert failures.new() == ["row 1: é"]


def test_processes_and_threads_note_side_by_side(attempt: Path) -> None:
    script = "from omnirl.engine.failures import note\nfor n in range(200): note(f'there {n}' + 'x' * 300)\nprint(0)"
    with ThreadPoolExecutor(4) as pool:
        other = pool.submit(python, script, **{ATTEMPT_DIR: str(attempt)})
        list(pool.map(lambda number: note(f"here {number}" + "y" * 300), range(200)))
        other.result()
    found = Failures().new()
    assert len(found) == 400
    assert {line.split()[0] for line in found} == {"here", "there"}


def test_outside_a_run_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ATTEMPT_DIR, raising=False)
    monkeypatch.chdir(tmp_path)
    note("row: why")
    assert list(tmp_path.iterdir()) == []
    assert Failures().new() == []


def test_the_first_are_named() -> None:
    assert named([]) == ""
    assert named(["a: b"]) == "; a: b"
    assert named([str(number) for number in range(7)]) == "; 0; 1; 2; and 4 more rows"
