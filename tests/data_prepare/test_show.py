"""Rows for people: facts of real media, pages that fetch nothing and run nothing, whatever a row holds."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnirl.data import store
from omnirl.data.preference import Preference
from omnirl.data.sample import Image, Sample, Video
from omnirl.data.view import page
from omnirl.data.view.show import Shown, show
from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'{{ 7*7 }}{% raw %}</pre>"
URI = re.compile(r"data:([a-z]+/[a-z0-9]+);base64,([A-Za-z0-9+/=]+)")


@pytest.fixture
def rows(toy_data: Path) -> list[Shown]:
    return list(show(toy_data / "train.parquet", 0, 4))


def test_a_row_of_every_kind(rows: list[Shown]) -> None:
    assert [row.number for row in rows] == [0, 1, 2, 3]
    assert [[item.kind for item in row.media] for row in rows] == [[], ["image"], ["image", "audio"], ["video"]]
    assert rows[1].label in ("<answer>A</answer>", "<answer>B</answer>", "<answer>C</answer>", "<answer>D</answer>")
    assert rows[1].options == ("red", "green", "blue", "yellow")
    assert rows[3].messages[0][0] == "user"
    assert rows[0].rest["kind"] == "text"


def test_media_have_their_facts(rows: list[Shown]) -> None:
    pytest.importorskip("av")
    picture, sound, clip = rows[2].media[0].as_dict(), rows[2].media[1].as_dict(), rows[3].media[0].as_dict()
    assert (picture["width"], picture["height"], picture["format"]) == (64, 64, "png")
    assert picture["size_bytes"] > 100
    assert (sound["duration_s"], sound["rate_hz"], sound["channels"], sound["codec"]) == (0.5, 8000, 1, "pcm_s16le")
    assert (clip["width"], clip["height"], clip["frames"], clip["fps"], clip["duration_s"]) == (64, 64, 4, 8.0, 0.5)
    assert clip["sampled_times_s"] == [0.0, 0.125, 0.25, 0.375]
    assert (clip["sampled_width"], clip["sampled_height"]) == (64, 64)
    assert clip["sound"]["rate_hz"] == 16_000


def test_the_times_are_those_of_the_frames_that_training_takes(tmp_path: Path, sample: Callable[..., Sample]) -> None:
    """At a constant rate and at one that changes."""
    pytest.importorskip("torch")
    import av
    import numpy as np

    from omnirl.engine import media

    for name, times in (("even", range(60)), ("uneven", [*range(30), *range(100, 400, 10)])):
        path = tmp_path / f"{name}.mkv"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for time in times:
                frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), time % 250, np.uint8), format="rgb24")
                frame.pts = time
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        clip = Video(path, fps=1.5, min_pixels=1024, max_pixels=2048, max_frames=16)
        store.write_parquet(tmp_path / "x.parquet", [sample(0, prompt="<video>", videos=(clip,))])
        (row,) = show(tmp_path / "x.parquet", 0, 1)
        facts = row.media[0].as_dict()
        frames, metadata = media.video(clip.to_row())
        expected = [index / metadata["fps"] for index in metadata["frames_indices"]]
        assert facts["sampled_times_s"] == pytest.approx(expected, abs=0.05), name
        assert (facts["sampled_frames"], facts["sampled_height"], facts["sampled_width"]) == (
            frames.shape[0],
            *frames.shape[2:],
        )


def test_rows_from_the_middle_and_out_of_range(toy_data: Path) -> None:
    path = toy_data / "train.parquet"
    assert [row.number for row in show(path, 30, 10)] == [30, 31]
    for number in (-1, 32, 10**9):
        with pytest.raises(UsageMistake, match=f"no row {number}: its rows are 0 to 31"):
            list(show(path, number, 1))
    with pytest.raises(InvalidInput, match="no such file"):
        list(show(toy_data / "absent.parquet", 0, 1))


@pytest.fixture
def strange(tmp_path: Path, sample: Callable[..., Sample]) -> Path:
    """Rows whose text and names are hostile and whose media are not there, or are no media."""
    secret = tmp_path / "secret.png"
    secret.write_text("password")
    gone = tmp_path / '"><script>.wav'
    rows = [
        sample(0, prompt=EVIL, ground_truth=EVIL, data_source=EVIL, options=(EVIL,), details=EVIL),
        sample(1, prompt="<image><image>", images=(Image(path=secret), Image(data=b"\x89PNG\r\n\x1a\n<script>"))),
        sample(2, prompt="<audio><audio>", audios=(gone, Path("relative.wav"))),
        sample(3, prompt="<image>", images=(Image(),)),
    ]
    return store.write_parquet(tmp_path / "strange.parquet", rows).path


def test_media_that_are_not_there_are_said_to_be_so(strange: Path) -> None:
    faults = [[item.fault for item in row.media] for row in show(strange, 1, 3)]
    assert faults[1] == ["missing", "without an absolute path"]
    assert faults[2] == ["neither a path nor bytes"]
    assert all("no readable image" in fault for fault in faults[0])


def test_a_page_holds_its_media(rows: list[Shown], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert page.write(out, rows, title="train.parquet") == 4
    text = out.read_text(encoding="utf-8")
    assert [kind for kind, _ in URI.findall(text)] == ["image/png", "image/png", "audio/wav", "video/mp4"]
    assert "<audio controls" in text and "<video controls" in text and "rows 0 to 3" in text
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_a_page_runs_and_fetches_nothing(strange: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    page.write(out, show(strange, 0, 4), title=EVIL)
    text = out.read_text(encoding="utf-8")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1] and "script" not in policy[1] and "http" not in policy[1]
    assert text.index("Content-Security-Policy") < text.index("<title>")
    assert "<script" not in text and "onerror=alert(2)>" not in text and "{{ 7*7 }}" in text
    assert html.escape("<script>alert(1)</script>") in text
    assert not re.search(r"(?:src|href)=\"(?!data:)", text)
    assert "password" not in text and "cGFzc3dvcmQ" not in text


def test_a_file_that_is_no_medium_never_gets_into_a_page(tmp_path: Path, sample: Callable[..., Sample]) -> None:
    """Even where nothing could look into it, as without the packages for media."""
    secret = tmp_path / "secret.wav"
    secret.write_text("password")
    store.write_parquet(tmp_path / "x.parquet", [sample(0, prompt="<audio>", audios=(secret,))])
    (row,) = show(tmp_path / "x.parquet", 0, 1)
    (item,) = row.media
    unknown = Shown(0, "", (), None, (), {}, (type(item)(item.kind, item.path),), {})
    page.write(tmp_path / "x.html", [row, unknown], title="x")
    assert not URI.search((tmp_path / "x.html").read_text())


def test_large_media_are_named_with_their_size(rows: list[Shown], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    page.write(out, rows, title="x", item_bytes=2000)
    text = out.read_text(encoding="utf-8")
    assert [kind for kind, _ in URI.findall(text)] == ["image/png", "image/png"]
    size = rows[3].media[0].as_dict()["size_bytes"]
    assert f"{size} bytes · too large for this page" in text
    assert str(rows[3].media[0].path) in text


def test_a_page_that_cannot_be_written(rows: list[Shown], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacks, match="cannot be written"):
        page.write(tmp_path / "no" / "folder.html", rows, title="x")


def test_preferences_show_both_candidates(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"data_source": "p", "modality": "image", "ability": "x", "split": "x", "index": 0}
    pair = Preference(
        prompt="<image>?",
        path=tmp_path / "gone.png",
        chosen="good",
        rejected="bad",
        win_score=8.0,
        lose_score=3.0,
        ground_truth="A",
        question="?",
        **fields,
    )
    store.write_parquet(tmp_path / "x.parquet", [pair])
    (row,) = show(tmp_path / "x.parquet", 0, 1)
    assert row.candidates == {"chosen": "good", "rejected": "bad"}
    assert (row.rest["win_score"], row.rest["lose_score"]) == (8.0, 3.0)
    assert row.media[0].fault == "missing"
