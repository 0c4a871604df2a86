"""Frames: the right ones, turned the right way, from whatever container and rate; and what does not decode is named."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pytest
import torch

from omnirl.engine import media
from omnirl.errors import InvalidInput
from tests.engine.clips import number_of, numbered, spoil, tone, write_clip, write_sound

B_FRAMES = {"g": "12", "bf": "3", "qp": "4"}
X264 = {"codec": "libx264", "options": B_FRAMES}
OPEN = {"codec": "libx264", "options": {"x264-params": "open-gop=1:keyint=12:bframes=3", "qp": "4"}}
MPEG4 = {"codec": "mpeg4", "options": {"g": "12", "bf": "2"}}
FRAGMENTS = X264 | {"container_options": {"movflags": "frag_keyframe+empty_moov"}}


def item(path: Path, **fields: Any) -> dict[str, Any]:
    return {"video": str(path), "fps": 1.0, "min_pixels": 1024, "max_pixels": 96 * 64, "max_frames": 32} | fields


def times(metadata: dict[str, Any]) -> list[float]:
    return [index / metadata["fps"] for index in metadata["frames_indices"]]


@pytest.mark.parametrize("fps", [1.0, 2.5, 100.0])
@pytest.mark.parametrize(
    ("suffix", "how"),
    [
        *(("mp4", X264), ("mkv", X264), ("ts", X264), ("avi", X264), ("flv", X264), ("mov", OPEN), ("mkv", OPEN)),
        *(("avi", MPEG4), ("mp4", MPEG4), ("mp4", FRAGMENTS), ("h264", X264)),
        ("webm", {"codec": "libvpx-vp9", "options": {"g": "12", "crf": "4", "b": "0"}}),
    ],
)
def test_the_frames_taken_are_those_of_the_metadata(
    tmp_path: Path, suffix: str, how: dict[str, Any], fps: float
) -> None:
    path = write_clip(tmp_path / f"clip.{suffix}", numbered(40), **how)
    pixels, metadata = media.video(item(path, fps=fps, max_frames=64))
    # A raw stream has no times; its header's rate is a guess.
    count = {1.0: 4, 2.5: 10, 100.0: 40}[fps] if suffix != "h264" or fps == 100 else len(pixels)
    assert metadata["frames_indices"] == [round(index) for index in np.linspace(0, 39, count)]
    assert metadata["fps"] == pytest.approx(10) or suffix == "h264"
    assert metadata["total_num_frames"] == 40
    assert number_of(pixels) == [index % 12 for index in metadata["frames_indices"]]


SLOWING = [*range(0, 1000, 50), *range(1000, 10_000, 1000), 10_000]
"""Twenty frames in the first second, ten in the nine after."""


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_a_changing_rate_is_sampled_evenly_in_time(tmp_path: Path, suffix: str) -> None:
    path = write_clip(tmp_path / f"slowing.{suffix}", numbered(len(SLOWING)), times_ms=SLOWING)
    pixels, metadata = media.video(item(path, fps=0.6))
    assert len(pixels) == 6
    assert times(metadata) == pytest.approx([0, 2, 4, 6, 8, 10], abs=0.01)
    # What is on the screen in these moments.
    assert number_of(pixels) == [SLOWING.index(second * 1000) % 12 for second in (0, 2, 4, 6, 8, 10)]
    assert media.sampled_fps(metadata) == pytest.approx(0.5, rel=0.01)


def test_between_two_frames_the_former_is_on_the_screen(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "slides.mkv", numbered(4), times_ms=[0, 100, 200, 9000])
    pixels, metadata = media.video(item(path))
    assert number_of(pixels) == [0, 2, 2, 3]
    assert times(metadata) == pytest.approx([0, 3, 6, 9], abs=0.01)


def test_rounded_times_are_still_a_constant_rate(tmp_path: Path) -> None:
    rounded = [round(number * 1000 / 30) for number in range(90)]
    path = write_clip(tmp_path / "clip.mkv", numbered(90), times_ms=rounded)
    _, metadata = media.video(item(path, fps=2.0))
    assert metadata["frames_indices"] == [0, 18, 36, 53, 71, 89]
    assert metadata["fps"] == pytest.approx(30, rel=0.01)


def test_one_frame_and_three(tmp_path: Path) -> None:
    one, metadata = media.video(item(write_clip(tmp_path / "one.mp4", numbered(1), rate=30)))
    assert (len(one), metadata["frames_indices"]) == (2, [0, 0])
    three, metadata = media.video(item(write_clip(tmp_path / "three.mp4", numbered(3), rate=30)))
    assert (number_of(three), times(metadata)) == ([0, 2], pytest.approx([0, 2 / 30]))


def test_a_minute_within_32_frames_keeps_its_times(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "minute.mp4", numbered(240), rate=4, options={"g": "40"})
    pixels, metadata = media.video(item(path))
    assert len(pixels) == 32
    assert times(metadata) == pytest.approx(np.linspace(0, 59.75, 32), abs=0.126)
    assert media.sampled_fps(metadata) == pytest.approx(31 / 59.75)


ORIENTATIONS = {
    "as it is": [1, 0, 0, 1],
    "mirrored": [-1, 0, 0, 1],
    "upside down": [-1, 0, 0, -1],
    "flipped": [1, 0, 0, -1],
    "clockwise": [0, 1, -1, 0],
    "counter-clockwise": [0, -1, 1, 0],
    "transposed": [0, 1, 1, 0],
    "transversed": [0, -1, -1, 0],
}


def corners(width: int = 96, height: int = 64) -> np.ndarray:
    """Four areas of different colours."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (250, 20, 20)
    picture[: height // 2, width // 2 :] = (20, 250, 20)
    picture[height // 2 :, width // 2 :] = (20, 20, 250)
    return picture


def turned(path: Path, name: str) -> Path:
    across, down, right, below = (65536 * part for part in ORIENTATIONS[name])
    return write_clip(path, [corners()] * 10, matrix=[across, down, 0, right, below, 0, 0, 0, 1 << 30])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("as it is", lambda picture: picture),
        ("upside down", lambda picture: picture[::-1, ::-1]),
        ("clockwise", lambda picture: np.rot90(picture, -1)),
        ("counter-clockwise", np.rot90),
        ("mirrored", lambda picture: picture[:, ::-1]),
    ],
)
def test_frames_are_turned_as_the_file_says(tmp_path: Path, name: str, expected: Any) -> None:
    pixels, _ = media.video(item(turned(tmp_path / "clip.mp4", name)))
    shown = pixels[0].permute(1, 2, 0).numpy().astype(int)
    wanted = expected(corners())
    assert shown.shape == wanted.shape
    assert np.abs(shown - wanted).mean() < 8


@pytest.mark.ffmpeg
@pytest.mark.skipif(which("ffmpeg") is None, reason="needs the program ffmpeg")
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_ffmpeg_turns_them_the_same_way(tmp_path: Path, name: str) -> None:
    path = turned(tmp_path / "clip.mp4", name)
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-frames:v", "1", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    pixels, _ = media.video(item(path))
    shown = pixels[0].permute(1, 2, 0).numpy()
    reference = np.frombuffer(data, np.uint8).reshape(shown.shape)
    assert np.abs(shown.astype(int) - reference).mean() < 1


def pictures_of(count: int) -> list[np.ndarray]:
    """Noise, so that every frame takes many bytes."""
    random = np.random.default_rng(0)
    return [random.integers(0, 255, (64, 96, 3), np.uint8) for _ in range(count)]


def test_a_damaged_last_frame_is_replaced_by_its_neighbour(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mov", numbered(40), codec="mjpeg")
    whole, metadata = media.video(item(path))
    damaged, same = media.video(item(spoil(path, [-1])))
    assert same == metadata
    assert torch.equal(damaged[:3], whole[:3])
    assert number_of(damaged) == [0, 1, 2, 38 % 12]


@pytest.mark.parametrize("spoilt", [range(20, 40), range(40), range(5, 30)])
def test_damaged_stretches_are_named(tmp_path: Path, spoilt: Sequence[int]) -> None:
    path = spoil(write_clip(tmp_path / "clip.mov", pictures_of(40), codec="mjpeg"), spoilt)
    with pytest.raises(InvalidInput, match=r"frames of `.*clip\.mov` around second \d+\.\d do not decode"):
        media.video(item(path))


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("avi", "mpeg4"), ("mkv", "libx264")])
def test_a_file_cut_short_is_named(tmp_path: Path, suffix: str, codec: str) -> None:
    fast = {"container_options": {"movflags": "faststart"}} if suffix == "mp4" else {}
    path = write_clip(tmp_path / f"clip.{suffix}", pictures_of(40), codec=codec, **fast)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 5])
    with pytest.raises(InvalidInput, match=rf"clip\.{suffix}"):
        media.video(item(path))


def test_an_edited_clip_is_whole(tmp_path: Path) -> None:
    """An edit list may show a part of what is in the file."""
    path = write_clip(tmp_path / "clip.mp4", numbered(40), options={"g": "40", "bf": "0", "qp": "4"})
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 12
    data[at : at + 4] = (1000).to_bytes(4, "big")  # one second of four, in the movie's milliseconds
    path.write_bytes(data)
    pixels, metadata = media.video(item(path, fps=10))
    assert metadata["total_num_frames"] == 10
    assert number_of(pixels) == list(range(10))


def test_sound_alone_and_covers_are_no_video(tmp_path: Path) -> None:
    sound = write_sound(tmp_path / "sound.mp4", tone(0.5), 16_000, "aac")
    covered = write_sound(tmp_path / "covered.mp3", tone(0.5), 44_100, "libmp3lame", cover=True)
    for path in (sound, covered):
        with pytest.raises(InvalidInput, match="has no video stream"):
            media.video(item(path))
    assert media.audio(covered).size > 2000


@pytest.mark.parametrize(("width", "height"), [(1810, 8), (8, 1810)])
def test_extreme_frames_are_named(tmp_path: Path, width: int, height: int) -> None:
    path = write_clip(tmp_path / "long.mp4", numbered(3, width, height))
    with pytest.raises(InvalidInput, match=rf"long\.mp4` is {width} x {height} pixels"):
        media.video(item(path))


def test_playlists_and_addresses_are_no_media(tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.ts", numbered(10), sound=tone(1.0))
    playlist = tmp_path / "list.m3u8"
    playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{clip}\n#EXT-X-ENDLIST\n")
    concat = tmp_path / "list.mp4"
    concat.write_text(f"ffconcat version 1.0\nfile '{clip}'\n")
    for name in (str(playlist), str(concat), f"concat:{clip}", "http://127.0.0.1:1/a.mp4", "data:,x"):
        with pytest.raises(InvalidInput):
            media.video(item(Path("x"), video=name))
        with pytest.raises(InvalidInput):
            media.audio(name)
    assert len(media.video(item(clip))[0]) == 2


@pytest.mark.parametrize("reader", ["decord", "torchcodec", "torchvision"])
def test_no_other_reader_is_chosen(tmp_path: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_clip(tmp_path / "clip.mp4", numbered(20))
    pixels, metadata = media.video(item(path))
    monkeypatch.setenv("FORCE_QWENVL_VIDEO_READER", reader)
    again, recorded = media.video(item(path))
    assert torch.equal(pixels, again)
    assert recorded["video_backend"] == metadata["video_backend"] == "pyav"
