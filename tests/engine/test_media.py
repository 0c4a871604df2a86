"""Decoding of media, the messages of a row, and the processor call that training and warm-up share."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image

from omnirl.data.sources import toy_media
from omnirl.engine import media
from omnirl.errors import InvalidInput

FPS = 10


@pytest.fixture
def clip(tmp_path: Path) -> Callable[..., Path]:
    """A video of grey frames whose brightness is ten times their number, in groups of four."""

    def make(frames: int = 20, width: int = 96, height: int = 48) -> Path:
        path = tmp_path / f"{frames}-{width}x{height}.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=FPS, options={"g": "4", "qscale": "1", "flags": "+qscale"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for number in range(frames):
                picture = np.full((height, width, 3), 10 * number, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode(None))
        return path

    return make


def item(path: Path, **fields: Any) -> dict[str, Any]:
    return {"video": str(path), "fps": 2.0, "min_pixels": 1024, "max_pixels": 96 * 64, "max_frames": 8} | fields


def png(mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (5, 4)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P", "LA"])
def test_images_become_rgb(mode: str) -> None:
    assert (media.image(png(mode)).mode, media.image(png(mode)).size) == ("RGB", (5, 4))


def test_an_image_item_may_be_bytes_or_a_path(tmp_path: Path) -> None:
    path = tmp_path / "one.png"
    path.write_bytes(png())
    whole = [png(), str(path), {"bytes": png(), "path": None}, {"bytes": None, "path": str(path)}, {"image": str(path)}]
    assert {media.image(one).size for one in whole} == {(5, 4)}


@pytest.mark.parametrize("damaged", [b"", b"no picture", png()[:40], {"bytes": None, "path": None}, "/nowhere.png"])
def test_a_damaged_image_is_named(damaged: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        media.image(damaged)
    assert damaged != "/nowhere.png" or "/nowhere.png" in caught.value.message


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100])
def test_audio_is_16_khz_mono_float_in_whole_hops(tmp_path: Path, rate_hz: int) -> None:
    path = tmp_path / "tone.wav"
    wave = np.sin(2 * np.pi * 440 * np.arange(rate_hz // 2 + 7) / rate_hz) * 0.5
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=rate_hz, layout="stereo")
        pair = np.repeat((wave * 32767).astype(np.int16), 2)[None]
        frame = av.AudioFrame.from_ndarray(pair, format="s16", layout="stereo")
        frame.sample_rate = rate_hz
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    samples = media.audio(path)
    assert (samples.dtype, samples.ndim, samples.size % 160) == (np.float32, 1, 0)
    assert 8000 <= samples.size <= 8320
    assert abs(np.argmax(np.abs(np.fft.rfft(samples[:8000]))) * 2 - 440) <= 2
    assert 0.3 < np.abs(samples).max() < 0.8


def test_the_soundtrack_of_a_clip_is_its_sound(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    samples = toy_media.tone(random, "high", 16_000)
    path = tmp_path / "clip.mp4"
    toy_media.write_mp4(path, toy_media.motion(random, "red"), samples)
    heard = media.soundtrack(path)
    assert heard.size % 160 == 0
    assert np.corrcoef(heard[1000:7000], samples[1000:7000])[0, 1] > 0.99


def test_a_silent_clip_and_other_faults_are_named(clip: Callable[..., Path], tmp_path: Path) -> None:
    half = tmp_path / "half.mp4"
    half.write_bytes(clip().read_bytes()[:300])
    sound = tmp_path / "sound.wav"
    toy_media.write_wav(sound, np.zeros(800, np.float32))
    faults: list[tuple[Callable[[], Any], str]] = [
        (lambda: media.soundtrack(clip()), "has no audio stream"),
        (lambda: media.video(item(sound)), "has no video stream"),
        (lambda: media.video(item(half)), "half.mp4"),
        (lambda: media.audio(half), "half.mp4"),
        (lambda: media.audio(tmp_path / "none.wav"), "none.wav"),
        (lambda: media.video(item(tmp_path / "none.mp4")), "none.mp4"),
        (lambda: media.video({"video": ""}), "holds no path"),
    ]
    for call, words in faults:
        with pytest.raises(InvalidInput, match=words):
            call()


@pytest.mark.parametrize(
    ("frames", "fields", "expected"),
    [
        (20, {}, [0, 6, 13, 19]),
        (20, {"max_frames": 2}, [0, 19]),
        (20, {"max_frames": 3}, [0, 19]),
        (20, {"fps": 100.0, "max_frames": 100}, list(range(20))),
        (20, {"fps": 0.1}, [0, 19]),
        (7, {"fps": 100.0, "max_frames": 100}, [0, 1, 2, 4, 5, 6]),
        (1, {}, [0, 0]),
    ],
)
def test_frames_are_sampled_evenly_and_in_pairs(
    clip: Callable[..., Path], frames: int, fields: dict[str, Any], expected: list[int]
) -> None:
    pixels, metadata = media.video(item(clip(frames), **fields))
    assert metadata == {
        "fps": FPS,
        "frames_indices": expected,
        "total_num_frames": frames,
        "video_backend": "pyav",
    }
    assert pixels.dtype == torch.uint8
    shown = pixels.float().mean((1, 2, 3)) / 10
    assert shown.tolist() == pytest.approx(expected, abs=0.4)


@pytest.mark.parametrize(
    ("size", "budget", "expected"),
    [
        ((480, 640), (128 * 1024, 768 * 1024), (480, 640)),
        ((1080, 1920), (1024, 100_000), (224, 416)),
        ((20, 30), (4096, 65536), (64, 96)),
        ((64, 64), (1024, 4096), (64, 64)),
        ((10, 3000), (1024, 20_000), (32, 2432)),
    ],
)
def test_frames_fit_the_pixel_budget(size: tuple[int, int], budget: tuple[int, int], expected: tuple[int, int]) -> None:
    fitted = media.fit_pixels(*size, *budget)
    assert fitted == expected
    assert all(side % 32 == 0 for side in fitted)


def test_a_video_is_resized_into_its_budget(clip: Callable[..., Path]) -> None:
    pixels, _ = media.video(item(clip(width=192, height=96), max_pixels=96 * 64))
    assert pixels.shape == (4, 3, 32, 96)


def row(text: str, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"images": [], "audios": [], "videos": []}
    return {"prompt": [{"role": "user", "content": text}], **empty, **fields}


def test_media_take_the_places_of_their_marks() -> None:
    chat = media.messages(
        row(
            "See <image> and <image>hear<audio>.<video>",
            images=[{"bytes": b"1", "path": None}, {"bytes": b"2", "path": None}],
            audios=["a.wav"],
            videos=[{"video": "v.mp4", "fps": 1.0}],
        ),
        soundtrack=True,
    )
    assert chat == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "See "},
                {"type": "image", "image": {"bytes": b"1", "path": None}},
                {"type": "text", "text": " and "},
                {"type": "image", "image": {"bytes": b"2", "path": None}},
                {"type": "text", "text": "hear"},
                {"type": "audio", "audio": "a.wav"},
                {"type": "text", "text": "."},
                {"type": "video", "video": "v.mp4", "fps": 1.0},
                {"type": "audio", "audio": "v.mp4", "of_video": True},
            ],
        }
    ]


def test_without_soundtrack_a_video_stands_alone() -> None:
    chat = media.messages(row("<video>", videos=[{"video": "v.mp4"}]))
    assert chat[0]["content"] == [{"type": "video", "video": "v.mp4"}]


@pytest.mark.parametrize(
    ("text", "images"), [("<image>", []), ("nothing", [b"1"]), ("<image><image>", [b"1"]), ("<audio>", [])]
)
def test_marks_and_media_must_agree(text: str, images: list[bytes]) -> None:
    with pytest.raises(InvalidInput, match="the prompt names"):
        media.messages(row(text, images=images))


def test_the_processor_call_is_the_one_of_verl(
    processor: Any, checkpoint: Path, rows: dict[str, list[dict[str, Any]]], ask: Callable[..., dict[str, Any]]
) -> None:
    """The same tensors from this module with the stock processor and from verl with the run's processor."""
    from transformers import AutoProcessor
    from verl.utils.tokenizer import build_multimodal_processor_inputs

    stock = AutoProcessor.from_pretrained(checkpoint)
    for kind, found in rows.items():
        question = ask(found[0])
        theirs = dict(build_multimodal_processor_inputs(processor, **question))
        media_of = (question["images"], question["videos"], question["audio"])
        ours = media.processor_inputs(stock, question["text"][0], *media_of)
        theirs.pop("mm_token_type_ids", None)
        ours.pop("mm_token_type_ids", None)
        assert ours.keys() == theirs.keys(), kind
        for name, tensor in ours.items():
            assert torch.equal(torch.as_tensor(theirs[name]), tensor), (kind, name)
