"""Programs and packages that decode media."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from omnirl.doctor import media_tools
from tests.doctor.test_devices import program


@pytest.mark.ffmpeg
@pytest.mark.skipif(shutil.which("ffmpeg") is None or shutil.which("ffprobe") is None, reason="ffmpeg is not installed")
def test_real_programs() -> None:
    found = {one.name: one for one in media_tools.programs(os.environ)}
    assert found["ffmpeg"].verdict == found["ffprobe"].verdict == "ok"
    assert found["ffmpeg"].found.endswith(str(shutil.which("ffmpeg")))
    assert found["decoders"].verdict == "ok"


def test_an_empty_path() -> None:
    for environ in ({}, {"PATH": ""}, {"PATH": "/nowhere"}):
        found = list(media_tools.programs(environ))
        assert [(one.name, one.verdict) for one in found] == [("ffmpeg", "warn"), ("ffprobe", "warn")]
        assert "apt-get install ffmpeg" in str(found[0].hint)


def test_a_program_that_is_another(tmp_path: Path) -> None:
    program(tmp_path / "bin", "ffmpeg", "ffmpeg: error while loading shared libraries: libx.so.9\n", code=127, stream=2)
    program(tmp_path / "bin", "ffprobe", "hello\n")
    found = {one.name: one for one in media_tools.programs({"PATH": str(tmp_path / "bin")})}
    assert found["ffmpeg"].verdict == found["ffprobe"].verdict == "fail"
    assert "libx.so.9" in found["ffmpeg"].found
    assert str(tmp_path / "bin" / "ffprobe") in found["ffprobe"].found


def test_two_versions(tmp_path: Path) -> None:
    program(tmp_path / "bin", "ffmpeg", "ffmpeg version 7.1 Copyright\n V....D h264   H.264\n")
    program(tmp_path / "bin", "ffprobe", "ffprobe version n4.4 Copyright\n")
    found = {one.name: one for one in media_tools.programs({"PATH": str(tmp_path / "bin")})}
    assert found["ffmpeg + ffprobe"].found == "ffmpeg 7.1 beside ffprobe n4.4"
    assert found["decoders"].verdict == "warn"
    assert "hevc" in found["decoders"].found
    assert "h264" not in found["decoders"].found


def test_decoders_of_another_name() -> None:
    listing = " V....D libdav1d    dav1d AV1\n A....D mp3float    MP3\n VFS..D h264   H.264\n V....D hevc_cuvid  x\n"
    absent = media_tools.lacking(listing)
    assert not {"av1", "mp3", "h264"} & set(absent)
    assert {"hevc", "aac", "vp9"} <= set(absent)


def test_pyav_decodes_what_data_sets_come_in() -> None:
    assert media_tools.pyav(os.environ, needed=True).verdict == "ok"


def test_pyav_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "av").mkdir()
    (tmp_path / "av" / "__init__.py").write_text("raise ImportError('libavcodec.so.62: cannot open shared object')\n")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    found = media_tools.pyav({**os.environ, "PYTHONPATH": paths}, needed=True)
    assert found.verdict == "fail"
    assert "libavcodec.so.62: cannot open shared object" in found.found
