"""However an attempt ends, none of its processes outlives it, and no other process is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from omnirl.errors import ChildFailed
from omnirl.run import launch, processes
from tests.conftest import plain_environment

STAND_IN = Path(__file__).with_name("stand_in.py")

# The tests may themselves run under `nohup`, whose ignored SIGHUP is inherited and rightly kept.
DRIVER = """
import signal, sys
from pathlib import Path
from omnirl.run import launch
signal.signal(signal.SIGHUP, signal.SIG_DFL)
launch.launch(sys.argv[3:], attempt=Path(sys.argv[1]), tag=sys.argv[2], env={}, grace_s=30.0)
"""


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where every stand-in process leaves its id."""
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder = tmp_path / "attempt"
    folder.mkdir()
    return folder


@pytest.fixture
def tag() -> Iterator[str]:
    tag = launch.new_tag()
    yield tag
    processes.stop(tag, grace_s=0)


def stand_in(marks: Path, *words: str) -> list[str]:
    return [sys.executable, str(STAND_IN), str(marks), *words]


def alive(marks: Path) -> list[int]:
    return [int(mark.name) for mark in marks.iterdir() if _runs(int(mark.name))]


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def until(condition, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


@pytest.fixture
def driver(marks: Path, attempt: Path, tag: str):
    """A process that launches a stand-in as omnirl does; yields a function that starts it and waits for its marks."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, count: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", DRIVER, str(attempt), tag, *stand_in(marks, *words)]
        started.append(subprocess.Popen(command, env=plain_environment()))
        until(lambda: len(list(marks.iterdir())) == count)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_exit_code_and_output_are_kept(marks: Path, attempt: Path, tag: str) -> None:
    ended = launch.launch(stand_in(marks, "say=hello", "exit=7"), attempt=attempt, tag=tag, env={}, poll_s=0.1)
    assert ended.code == 7
    assert (attempt / "log.txt").read_text() == "hello\n"
    assert ended.stopped == processes.Stopped(0, 0, ())


def test_a_program_that_is_not_there_is_an_expected_failure(attempt: Path, tag: str) -> None:
    with pytest.raises(ChildFailed, match="could not be started"):
        launch.launch(["/nowhere/python"], attempt=attempt, tag=tag, env={})


def test_detached_processes_are_stopped_and_others_left_alone(marks: Path, attempt: Path, tag: str) -> None:
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, processes.TAG: "another-attempt"})
    try:
        ended = launch.launch(
            stand_in(marks, "daemon", "stubborn", "bare", "exit=0"), attempt=attempt, tag=tag, env={}, poll_s=0.1
        )
        assert len(list(marks.iterdir())) == 3
        assert alive(marks) == []
        assert ended.code == 0
        assert ended.stopped.met == 3
        assert ended.stopped.killed >= 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_killed_child_leaves_nothing_behind(marks: Path, attempt: Path, tag: str) -> None:
    def kill_once_up() -> None:
        if len(list(marks.iterdir())) >= 3:
            for process in psutil.Process().children():
                if _runs(process.pid) and "wait" in process.cmdline() and os.getsid(process.pid) == process.pid:
                    process.kill()

    command = stand_in(marks, "daemon", "stubborn", "wait")
    ended = launch.launch(command, attempt=attempt, tag=tag, env={}, poll=kill_once_up, poll_s=0.1)
    assert ended.code == -signal.SIGKILL
    assert alive(marks) == []


def test_a_fault_while_waiting_stops_the_child(marks: Path, attempt: Path, tag: str) -> None:
    def fault() -> None:
        if list(marks.iterdir()):
            raise RuntimeError("the display broke")

    with pytest.raises(RuntimeError, match="the display broke"):
        launch.launch(stand_in(marks, "daemon", "wait"), attempt=attempt, tag=tag, env={}, poll=fault, poll_s=0.1)
    assert alive(marks) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_omnirl_stops_the_whole_tree(signum: int, code: int, marks: Path, driver) -> None:
    process = driver("daemon", "wait", count=2)
    process.send_signal(signum)
    left = process.wait(20)
    # A bare script shows KeyboardInterrupt its own way; the command line turns it into 130.
    assert left == code if signum != signal.SIGINT else left in (1, 130, -signal.SIGINT)
    assert alive(marks) == []


def test_a_second_signal_cuts_the_grace_short(marks: Path, driver) -> None:
    process = driver("deaf", "wait", count=1)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 143
    assert time.monotonic() - began < 10
    assert alive(marks) == []


def test_the_child_dies_when_omnirl_is_killed(marks: Path, driver) -> None:
    process = driver("mortal", "wait", count=1)
    process.kill()
    process.wait()
    until(lambda: not alive(marks))


def test_leftovers_of_a_killed_omnirl_are_cleared_by_tag(marks: Path, attempt: Path, tag: str, driver) -> None:
    process = driver("mortal", "daemon", "wait", count=2)
    process.kill()
    process.wait()
    until(lambda: len(alive(marks)) == 1)
    assert launch.stop_leftovers(tag, attempt).met == 1
    assert alive(marks) == []


def test_only_a_folder_of_ray_is_removed(tmp_path: Path, marks: Path, attempt: Path, tag: str) -> None:
    ray, mine = tmp_path / f"{launch.RAY_FOLDER_PREFIX}x", tmp_path / "mine"
    (ray / "session_2026").mkdir(parents=True)
    mine.mkdir()
    for folder, goes in ((ray, True), (mine, False)):
        (attempt / launch.RAY_FOLDER_NOTE).write_text(f"{folder}\n")
        launch.launch(stand_in(marks, "exit=0"), attempt=attempt, tag=tag, env={}, poll_s=0.1)
        assert folder.exists() is not goes
