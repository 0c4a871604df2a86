"""The judge: each question once, files that are no files, and programs that are missing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnirl.data.media import Judge
from omnirl.data.media.rules import Verdict
from omnirl.errors import EnvironmentLacks
from tests.conftest import ROOT, plain_environment

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
