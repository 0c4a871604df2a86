"""The same clip through this package and through `qwen_omni_utils`, which the model was published with.

Frames have the same pixels. Sound differs by the resampler alone. Where the two part on purpose, it is asserted too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnirl.engine import media
from tests.engine.clips import numbered, tone, write_clip, write_sound

NEXTQA = {"fps": 1.0, "min_pixels": 25_088, "max_pixels": 100_352, "max_frames": 32}


@pytest.fixture(scope="module")
def theirs() -> Any:
    try:
        from qwen_omni_utils.v2_5 import audio_process, vision_process
    except ImportError as error:
        pytest.skip(f"needs qwen-omni-utils with decord or torchcodec ({error})")

    class Theirs:
        @staticmethod
        def video(item: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            message = {"role": "user", "content": [{"type": "video", **item}]}
            _, (found,) = vision_process.process_vision_info([message], return_video_metadata=True, image_patch_size=16)
            return found

        @staticmethod
        def image(path: Path) -> Image.Image:
            return vision_process.fetch_image({"image": str(path)}, image_patch_size=16)

        @staticmethod
        def audio(path: Path) -> np.ndarray:
            message = {"role": "user", "content": [{"type": "audio", "audio": str(path)}]}
            return np.asarray(audio_process.process_audio_info([message], use_audio_in_video=False)[0])

    return Theirs


def noise(count: int, width: int, height: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    coarse = random.integers(0, 255, (count, height // 8, width // 8, 3), np.uint8)
    return list(coarse.repeat(8, 1).repeat(8, 2))


@pytest.mark.parametrize(
    ("width", "height", "seconds"), [(320, 240, 6), (640, 480, 6), (256, 144, 6), (176, 320, 6), (64, 64, 60)]
)
def test_the_frames_of_a_clip(theirs: Any, tmp_path: Path, width: int, height: int, seconds: int) -> None:
    pictures = noise(8, width, height)
    path = write_clip(tmp_path / "clip.mp4", [pictures[at % 8] for at in range(10 * seconds)], options={"g": "50"})
    item = {"video": str(path), **NEXTQA}
    pixels, metadata = theirs.video(item)
    ours, own_metadata = media.video(item)
    assert ours.shape == pixels.shape
    assert own_metadata["frames_indices"] == [int(index) for index in metadata["frames_indices"]]
    assert own_metadata["fps"] == pytest.approx(metadata["fps"])
    difference = (ours.float() - pixels).abs()
    # two implementations of one filter round differently where edges are sharp
    assert difference.mean() < 0.25
    assert (difference > 2).float().mean() < 0.002


def test_short_clips_have_fewer_frames_here(theirs: Any, tmp_path: Path) -> None:
    """They take at least four frames of a clip, whatever its rate; a row's `fps` is taken at its word here."""
    item = {"video": str(write_clip(tmp_path / "clip.mp4", numbered(25))), **NEXTQA}
    assert (len(theirs.video(item)[0]), len(media.video(item)[0])) == (4, 2)


@pytest.mark.parametrize(
    ("mode", "size"), [("RGB", (300, 200)), ("RGBA", (64, 96)), ("L", (100, 40)), ("P", (57, 33)), ("CMYK", (90, 70))]
)
def test_pictures_in_the_size_of_the_processor(
    theirs: Any, processor: Any, tmp_path: Path, mode: str, size: tuple[int, int]
) -> None:
    random = np.random.default_rng(1)
    picture = Image.fromarray(random.integers(0, 255, (size[1], size[0], 3), np.uint8)).convert(mode)
    if mode == "RGBA":
        picture.putalpha(Image.fromarray(random.integers(0, 255, (size[1], size[0]), np.uint8)))
    path = tmp_path / ("picture.tiff" if mode == "CMYK" else "picture.png")
    picture.save(path)
    whole = processor.image_processor.size
    bounds = {"min_pixels": whole["shortest_edge"], "max_pixels": whole["longest_edge"]}
    prepared = theirs.image(path)
    if not bounds["min_pixels"] <= prepared.width * prepared.height <= bounds["max_pixels"]:
        pytest.fail("choose a size that both leave alone")
    ours = processor.image_processor(images=[media.image(path)], return_tensors="pt")
    others = processor.image_processor(images=[prepared], return_tensors="pt")
    # theirs never has fewer than four tokens, the tiny processor may
    if ours["image_grid_thw"].tolist() == others["image_grid_thw"].tolist():
        assert (ours["pixel_values"] - others["pixel_values"]).abs().mean() < 0.5 / 127.5
    else:
        assert prepared.width * prepared.height <= 4 * 32 * 32 + 4096


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("rate_hz", [16_000, 44_100])
def test_sound(theirs: Any, tmp_path: Path, channels: int, rate_hz: int) -> None:
    samples = np.stack([tone(2.0, rate_hz, 300.0 * (n + 1), 0.9 / (n + 1)) for n in range(channels)])
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[channels]
    path = write_sound(tmp_path / "a.flac", samples, rate_hz, "flac", layout=layout)
    other, ours = theirs.audio(path), media.audio(path)
    assert abs(ours.size - other.size) < 160
    size = min(ours.size, other.size)
    difference = ours[:size] - other[:size]
    # the edges belong to the resamplers' filters
    assert np.abs(difference[400:-400]).max() < 1e-3
    assert np.sqrt((difference**2).mean()) < 0.01 * np.sqrt((other**2).mean())
