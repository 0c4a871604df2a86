"""What `import` would find."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirl.doctor import imports
from tests.doctor.site import install


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path / "site", "ffmpeg-python", "0.2.0", module="ffmpeg")
    return tmp_path / "site"


def test_the_right_ffmpeg(site: Path) -> None:
    assert imports.ffmpeg_module([str(site)]).verdict == "ok"


@pytest.mark.parametrize("name", imports.IMPOSTORS)
def test_the_wrong_package_is_named(site: Path, name: str) -> None:
    install(site, name, "1.4")
    found = imports.ffmpeg_module([str(site)])
    assert found.verdict == "fail"
    assert f"{name} 1.4" in found.found
    assert str(found.hint).startswith(f"pip uninstall -y {name} && pip install --force-reinstall")


def test_a_local_file_that_hides_it(site: Path, tmp_path: Path) -> None:
    (tmp_path / "ffmpeg.py").write_text("x = 1\n")
    found = imports.ffmpeg_module([str(tmp_path), str(site)])
    assert found.verdict == "fail"
    assert found.found == f"hidden by {tmp_path / 'ffmpeg.py'}"
    assert found.hint == f"mv {tmp_path / 'ffmpeg.py'} {tmp_path / 'my_ffmpeg.py'}"


def test_none_at_all(tmp_path: Path) -> None:
    assert imports.ffmpeg_module([str(tmp_path)]).hint == "pip install ffmpeg-python"


def test_files_of_the_working_folder(tmp_path: Path) -> None:
    assert imports.hidden(tmp_path).verdict == "ok"
    (tmp_path / "torch").mkdir()
    assert imports.hidden(tmp_path).verdict == "ok"  # a folder of files is no package yet
    (tmp_path / "torch" / "__init__.py").write_text("")
    found = imports.hidden(tmp_path)
    assert found.verdict == "fail"
    assert found.hint == f"mv {tmp_path / 'torch'} {tmp_path / 'my_torch'}"


def test_other_readers_are_noted_and_not_used(tmp_path: Path) -> None:
    install(tmp_path, "av", "18.1.0")
    install(tmp_path, "torchcodec", "0.17.0")
    found = imports.video_reader([str(tmp_path)], None)
    assert (found.verdict, found.found) == ("ok", "PyAV 18.1.0; torchcodec 0.17.0 not used")
    forced = imports.video_reader([str(tmp_path)], "decord")
    assert (forced.verdict, forced.hint) == ("warn", "unset FORCE_QWENVL_VIDEO_READER")
