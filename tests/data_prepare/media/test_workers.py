"""Deadlines, and processes that hang, crash, outgrow their memory, or lose their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from omnirl.data.media import Judge, pool
from omnirl.data.media.pool import Workers
from omnirl.data.media.programs import Overrun, Programs
from tests.conftest import plain_environment
from tests.data_prepare.media.conftest import is_alive, lines
from tests.data_prepare.media.zoo import write_wav

# Deadlines and crashes


def wait_for(what, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


def stuck_worker(workers: Workers, tone: Path) -> int:
    """Start a worker and stop it with SIGSTOP; its process id."""
    assert workers.ask("audio", tone, 1).verdict is not None
    (pid,) = workers.pids()
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_worker_that_hangs_is_killed_and_replaced(tone: Path) -> None:
    workers = Workers(0.5, thorough=True)
    pid = stuck_worker(workers, tone)
    answer = workers.ask("audio", tone, 1)
    assert answer.verdict is None and answer.late
    assert not is_alive(pid)
    answer = workers.ask("audio", tone, 1)
    assert answer.verdict is not None and answer.verdict.reason == ""
    assert workers.pids() and pid not in workers.pids()
    workers.close()
    assert workers.pids() == []


def test_a_hanging_worker_without_programs_is_a_timeout(without_programs: None, tmp_path: Path, tone: Path) -> None:
    cache, other = tmp_path / "cache.jsonl", tmp_path / "other.wav"
    write_wav(other, 1)
    with Judge(timeout_s=0.5, workers=1, cache=cache) as judge:
        assert judge.ask("audio", tone).result().reason == ""
        assert judge.workers is not None
        os.kill(judge.workers.pids()[0], signal.SIGSTOP)
        assert judge.ask("audio", other).result().reason == "probe_timeout"
    # A timeout is no property of the file.
    assert [line["path"] for line in lines(cache)] == [str(tone)]


@pytest.mark.ffmpeg
def test_the_programs_judge_what_a_lost_worker_had(programs: None, tmp_path: Path, tone: Path) -> None:
    other = tmp_path / "other.wav"
    write_wav(other, 1)
    with Judge(timeout_s=10, workers=1) as judge:
        judge.ask("audio", tone).result()
        assert judge.workers is not None
        (pid,) = judge.workers.pids()
        os.kill(pid, signal.SIGSTOP)
        asked = judge.ask("audio", other)
        os.kill(pid, signal.SIGKILL)
        verdict = asked.result()
        assert verdict.reason == ""
        assert verdict.facts["duration_s"] == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_file_on_which_workers_crash(
    without_programs: None, tmp_path: Path, tone: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, crashed = pool._send, []

    def crash(process: subprocess.Popen[bytes], line: bytes) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        send(process, line)
        os.kill(process.pid, number)
        os.kill(process.pid, signal.SIGCONT)
        crashed.append(process.pid)

    other = tmp_path / "other.wav"
    write_wav(other, 1)
    with Judge(workers=1) as judge:
        judge.ask("audio", tone).result()
        with monkeypatch.context() as patch:
            patch.setattr(pool, "_send", crash)
            assert judge.ask("audio", other).result().reason == "undecodable_audio"
        # One that had looked at another file, and one of its own.
        assert len(set(crashed)) == 2
        assert judge.ask("audio", tone.rename(tmp_path / "third.wav")).result().reason == ""


def test_a_worker_that_dies_while_it_seems_alive_costs_no_verdict(
    without_programs: None, tmp_path: Path, tone: Path
) -> None:
    other = tmp_path / "other.wav"
    write_wav(other, 1)
    with Judge(workers=1) as judge:
        judge.ask("audio", tone).result()
        assert judge.workers is not None
        (pid,) = judge.workers.pids()
        os.kill(pid, signal.SIGSTOP)
        asked = judge.ask("audio", other)
        time.sleep(0.2)
        assert not asked.done()
        os.kill(pid, signal.SIGKILL)
        assert asked.result().reason == ""


def test_a_worker_that_died_idle_costs_no_verdict(
    without_programs: None, judge: Judge, tmp_path: Path, tone: Path
) -> None:
    judge.ask("audio", tone).result()
    assert judge.workers is not None
    (pid,) = judge.workers.pids()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(pid))
    assert judge.ask("audio", tone.rename(tmp_path / "other.wav")).result().reason == ""


def test_a_worker_that_outgrows_its_memory_says_so_or_dies(tmp_path: Path) -> None:
    import av

    path = tmp_path / "large.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("rawvideo", rate=1)
        stream.width = stream.height = 8_000
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame(8_000, 8_000, "yuv420p")
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        container.mux([*stream.encode(frame), *stream.encode(None)])
    for memory_bytes, usable in ((2 << 30, True), (320 << 20, False)):
        workers = Workers(60, thorough=True, memory_bytes=memory_bytes)
        verdict = workers.ask("video", path, path.stat().st_size).verdict
        assert (verdict is not None and verdict.reason == "") is usable
        workers.close()


@pytest.mark.ffmpeg
def test_a_program_that_takes_too_long_is_killed(programs: None, tmp_path: Path) -> None:
    # An hour of sound: demuxing it takes longer than the deadline.
    path = tmp_path / "long.wav"
    write_wav(path, 3600)
    late = Programs(0.05)
    with pytest.raises(Overrun):
        late.look(path, "audio")
    with Judge(probe="ffmpeg", timeout_s=0.05, cache=tmp_path / "cache.jsonl") as judge:
        assert judge.ask("audio", path).result().reason == "probe_timeout"
    assert lines(tmp_path / "cache.jsonl") == []


def test_closing_cancels_what_waits_and_kills_what_runs(tmp_path: Path, tone: Path) -> None:
    others = [tmp_path / f"{number}.wav" for number in range(20)]
    for other in others:
        write_wav(other, 0.1)
    with Judge(workers=1, cache=tmp_path / "cache.jsonl") as judge:
        judge.ask("audio", tone).result()
        assert judge.workers is not None
        (pid,) = judge.workers.pids()
        os.kill(pid, signal.SIGSTOP)
        asked = [judge.ask("audio", other) for other in others]
    assert not is_alive(pid)
    for one in asked:
        with pytest.raises(CancelledError):
            one.result(timeout=0)
    assert len(lines(tmp_path / "cache.jsonl")) == 1


PARENT = """
import sys, time
from pathlib import Path
from omnirl.data.media import Judge, pool
judge = Judge(workers=2)
asked = [judge.ask("audio", Path(name)) for name in sys.argv[1:]]
[one.result() for one in asked]
print(*judge.workers.pids(), flush=True)
time.sleep(600)
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.wav") for number in range(12)]
    for name in names:
        write_wav(Path(name), 1)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *names], env=plain_environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert pids and all(map(is_alive, pids))
    finally:
        parent.kill()
        parent.communicate()
    wait_for(lambda: not any(map(is_alive, pids)))
