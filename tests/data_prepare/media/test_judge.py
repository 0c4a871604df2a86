"""The judge: each question once, the cache, files that are no files, deadlines, and processes that die."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from omnirl.data.media import Judge, pool
from omnirl.data.media.cache import Cache
from omnirl.data.media.pool import Workers
from omnirl.data.media.programs import Overrun, Programs
from omnirl.data.media.rules import Verdict
from omnirl.errors import EnvironmentLacks, InvalidInput
from tests.conftest import ROOT, plain_environment
from tests.data_prepare.media.conftest import is_alive
from tests.data_prepare.media.zoo import write_wav

KINDS = ("image", "audio", "video", "soundtrack")
NOUNS = dict(zip(KINDS, ("image", "audio", "video", "video"), strict=True))


def test_a_file_is_looked_at_once_for_each_kind(judge: Judge, tone: Path) -> None:
    asked = [judge.ask("audio", tone) for _ in range(5)]
    assert {one.result().reason for one in asked} == {""}
    assert judge.probed == 1
    assert judge.ask("audio", tone).result() == asked[0].result()
    assert [judge.ask("video", tone).result().reason for _ in range(2)] == ["no_video"] * 2
    assert judge.probed == 2


def test_asking_from_many_threads(judge: Judge, tone: Path) -> None:
    answers: list[Verdict] = []
    threads = [threading.Thread(target=lambda: answers.append(judge.ask("audio", tone).result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert {answer.reason for answer in answers} == {""}
    assert judge.probed == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verify", [True, False])
def test_what_is_no_file(kind: str, verify: bool, tmp_path: Path) -> None:
    empty, fifo, loop, outlet = (tmp_path / name for name in ("empty", "fifo", "loop", "socket"))
    empty.touch()
    os.mkfifo(fifo)
    loop.symlink_to(loop)
    (tmp_path / "to_fifo").symlink_to(fifo)
    with socket.socket(socket.AF_UNIX) as server, Judge(verify=verify, workers=1) as judge:
        server.bind(str(outlet))
        reasons = {
            f"missing_{NOUNS[kind]}": [
                tmp_path / "none",
                tmp_path / "nul\0",
                tmp_path / ("x" * 300),
                loop,
                empty / "x",
            ],
            f"empty_{NOUNS[kind]}": [empty, Path("/proc/self/cmdline")],
            "not_a_file": [fifo, tmp_path / "to_fifo", tmp_path, outlet, Path("/dev/zero"), Path("/dev/stdin").parent],
        }
        for reason, paths in reasons.items():
            assert [judge.ask(kind, path).result(timeout=20).reason for path in paths] == [reason] * len(paths)
        assert judge.probed == 0


def test_without_verify_nothing_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "broken.mp4"
    path.write_bytes(b"no movie")
    with Judge(verify=False, cache=tmp_path / "cache.jsonl") as judge:
        for kind in KINDS:
            assert judge.ask(kind, path).result() == Verdict("", {"size_bytes": 8})
        assert judge.ask("image", b"x").result().reason == ""
        assert judge.ask("image", b"").result().reason == "empty_image"
        assert judge.probed == 0
    assert not (tmp_path / "cache.jsonl").exists()


def test_relative_paths_and_another_folder(tone: Path, judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tone.parent)
    assert judge.ask("audio", Path(tone.name)).result().reason == ""


def test_a_module_in_the_folder_of_the_call_is_not_loaded(tone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tone.parent / "av.py").write_text("raise SystemExit")
    (tone.parent / "json.py").write_text("raise SystemExit")
    monkeypatch.chdir(tone.parent)
    with Judge(workers=1) as judge:
        assert judge.ask("audio", tone).result().reason == ""
        assert judge.workers is not None and judge.workers.pids()


def test_the_worker_loads_pyav_and_little_else() -> None:
    code = (
        "import sys, omnirl.data.media.worker, omnirl.data.media.pyav, av, json; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain_environment(), capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(json.loads(done.stdout))
    ours = {name for name in loaded if name.startswith("omnirl.")} - {"omnirl.data", "omnirl.data.media"}
    assert ours == {f"omnirl.data.media.{name}" for name in ("worker", "pyav", "rules", "sniff")}
    assert not loaded & {"numpy", "PIL", "torch", "pyarrow", "concurrent.futures"}


# The cache


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_warm_cache_looks_at_nothing(tmp_path: Path, tone: Path) -> None:
    cache, broken = tmp_path / "deep" / "cache.jsonl", tmp_path / "broken.wav"
    broken.write_bytes(b"no sound")
    questions = [("audio", tone), ("audio", broken), ("video", tone), ("image", tone), ("audio", tmp_path / "missing")]
    first: list[Verdict] = []
    for round_ in range(3):
        with Judge(cache=cache, workers=1) as judge:
            verdicts = [judge.ask(kind, path).result() for kind, path in questions]
            assert judge.probed == (4 if round_ == 0 else 0)
        first = first or verdicts
        assert verdicts == first
    assert [verdict.reason for verdict in first] == [
        "",
        "undecodable_audio",
        "no_video",
        "unreadable_image",
        "missing_audio",
    ]
    assert len(lines(cache)) == 4
    (tmp_path / "missing").write_bytes(tone.read_bytes())
    os.utime(tone, ns=(1, 1))
    with Judge(cache=cache, workers=1) as judge:
        assert [judge.ask(kind, path).result().reason for kind, path in questions][4] == ""
        assert judge.probed == 4


def test_verdicts_are_kept_as_they_come(tmp_path: Path, tone: Path) -> None:
    with Judge(cache=tmp_path / "cache.jsonl", workers=1) as judge:
        judge.ask("audio", tone).result()
        assert len(lines(tmp_path / "cache.jsonl")) == 1


@pytest.mark.parametrize("keep", [1, 30, -1])
def test_a_torn_line_is_repaired(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cache.jsonl"
    with_two = Cache(path)
    for name in ("a", "b"):
        with_two.put("audio", tmp_path / name, 5, 7, Verdict("", {"duration_s": 1.5}))
    with_two.close()
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:keep])
    torn = Cache(path)
    assert torn.get("audio", tmp_path / "a", 5, 7) == Verdict("", {"duration_s": 1.5})
    torn.put("audio", tmp_path / "c", 5, 7, Verdict("no_audio", {}))
    torn.close()
    again = Cache(path)
    assert again.get("audio", tmp_path / "c", 5, 7) == Verdict("no_audio", {})
    assert again.get("audio", tmp_path / "a", 5, 7) is not None
    again.close()


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"\xff\xfe", b"{" * 70_000, b'{"version":1}', b'{"version":0,"kind":"audio"}', b"null", b"9" * 10_000],
)
def test_lines_that_are_no_verdicts_are_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "cache.jsonl"
    cache = Cache(path)
    cache.put("audio", tmp_path, 1, 2, Verdict("", {}))
    cache.close()
    path.write_bytes(line + b"\n" + path.read_bytes())
    cache = Cache(path)
    assert cache.get("audio", tmp_path, 1, 2) == Verdict("", {})
    assert cache.get("video", tmp_path, 1, 2) is None
    assert cache.get("audio", tmp_path, 1, 3) is None
    cache.close()


def test_another_version_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    cache = Cache(path)
    cache.put("audio", tmp_path, 1, 2, Verdict("", {}))
    cache.close()
    path.write_text(path.read_text().replace('"version":1', '"version":999'))
    cache = Cache(path)
    assert cache.get("audio", tmp_path, 1, 2) is None
    cache.close()


def test_a_stale_cache_is_compacted_unless_it_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    writer = Cache(path)
    for time_ns in range(200):
        writer.put("audio", tmp_path / "odd \udcff name", 1, time_ns, Verdict("", {"silent": True}))
    reader = Cache(path)
    assert len(lines(path)) == 200
    reader.close()
    writer.close()
    compact = Cache(path)
    assert len(lines(path)) == 1
    compact.put("video", tmp_path, 1, 2, Verdict("no_video", {}))
    compact.close()
    assert len(lines(path)) == 2
    assert list(tmp_path.iterdir()) == [path]
    last = Cache(path)
    assert last.get("audio", tmp_path / "odd \udcff name", 1, 199) == Verdict("", {"silent": True})
    last.close()


def test_a_cache_that_cannot_be_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Judge(cache=tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidInput):
        Judge(cache=tmp_path / "fifo")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentLacks):
        Judge(cache=tmp_path / "file" / "cache.jsonl")


# Programs and packages that are missing


def test_asking_for_programs_that_are_not_there(without_programs: None) -> None:
    with pytest.raises(EnvironmentLacks) as raised:
        Judge(probe="ffmpeg")
    assert "ffprobe" in raised.value.message
    assert "install ffmpeg" in str(raised.value.hint)


def test_pyav_alone_will_do(without_programs: None, judge: Judge, tone: Path) -> None:
    assert judge.ask("audio", tone).result().reason == ""
    assert judge.ask("soundtrack", tone).result().reason == "no_video"


@pytest.mark.ffmpeg
def test_the_wrong_package_named_ffmpeg(tmp_path: Path, programs: None) -> None:
    (tmp_path / "ffmpeg.py").touch()
    code = (
        "from omnirl.data.media import Judge\nfrom omnirl.errors import EnvironmentLacks\n"
        "try: Judge(probe='ffmpeg')\nexcept EnvironmentLacks as error: print(error.message, error.hint)"
    )
    environment = plain_environment()
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{ROOT}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, timeout=60
    )
    assert str(tmp_path / "ffmpeg.py") in done.stdout, done.stderr
    assert "ffmpeg-python" in done.stdout


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
