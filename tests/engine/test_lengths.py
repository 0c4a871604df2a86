"""Lengths from arithmetic are those of the real processor, on every row; the counting process keeps its word."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from omnirl.data import headers, store, tokens
from omnirl.data.checks.lengths import Counting
from omnirl.data.sample import Image, Sample, Video
from omnirl.engine import lengths, media
from omnirl.engine.audio import LEAST_SAMPLES
from omnirl.errors import EnvironmentLacks, InvalidInput

SIZES = ((1, 1), (31, 33), (48, 48), (640, 7), (500, 375), (4000, 3000), (15, 2900), (257, 255))
SOUNDS = (
    *(
        ("wav", "pcm_s16le", rate, count)
        for rate in (8000, 16_000, 22_050, 44_100, 48_000)
        for count in (400, 4001, 7056, 31_999)
    ),
    *(("flac", "flac", rate, 12_345) for rate in (16_000, 44_100)),
    *(("m4a", "aac", rate, count) for rate in (16_000, 44_100) for count in (3000, 40_321)),
    *(("mkv", "aac", rate, 25_000) for rate in (16_000, 48_000)),
    ("aac", "aac", 44_100, 30_000),
)
CLIPS = ((1, 30, 64, 48), (3, 30, 96, 64), (7, 10, 50, 34), (45, 15, 320, 180), (200, 25, 128, 96))


def picture(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Pillow.new("RGB", (width, height), (200, 30, 60)).save(buffer, "PNG")
    return buffer.getvalue()


def sound(path: Path, codec: str, rate_hz: int, count: int) -> Path:
    """Noise of `count` samples."""
    noise = np.random.default_rng(count).uniform(-0.4, 0.4, count)
    planar = codec == "aac"
    samples = noise.astype(np.float32)[None] if planar else (noise * 32_000).astype(np.int16)[None]
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate_hz, layout="mono")
        size = stream.codec_context.frame_size or 4096
        for start in range(0, count, size):
            piece = np.ascontiguousarray(samples[:, start : start + size])
            frame = av.AudioFrame.from_ndarray(piece, format="fltp" if planar else "s16", layout="mono")
            frame.sample_rate, frame.pts = rate_hz, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def clip(path: Path, frames: int, fps: int, width: int, height: int, rate_hz: int = 44_100) -> Path:
    """A grey clip with a soundtrack of about its own length."""
    noise = np.random.default_rng(frames).uniform(-0.4, 0.4, max(frames * rate_hz // fps, 2000)).astype(np.float32)
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=fps)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        audio = container.add_stream("aac", rate=rate_hz, layout="mono")
        for number in range(frames):
            grey = np.full((height, width, 3), number % 200, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
        container.mux(video.encode(None))
        for start in range(0, noise.size, 1024):
            piece = av.AudioFrame.from_ndarray(noise[None, start : start + 1024], format="fltp", layout="mono")
            piece.sample_rate, piece.pts = rate_hz, start
            container.mux(audio.encode(piece))
        container.mux(audio.encode(None))
    return path


def sample(index: int, prompt: str, **fields: Any) -> Sample:
    words = {"data_source": "x", "ground_truth": "1", "ability": "x", "split": "train", "question": "?", "answer": "1"}
    return Sample(prompt=prompt, index=index, **words, **fields)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows with media of odd sizes, rates and durations."""
    folder = tmp_path_factory.mktemp("odd")
    prompts: list[tuple[str, dict[str, Any]]] = [
        ("plain ünïcode 数学 🙂\n\n  twice <answer>B</answer>", {}),
        *(
            (f"<image> {width} x {height}", {"images": (Image(data=picture(width, height)),)})
            for width, height in SIZES
        ),
    ]
    for number, (suffix, codec, rate, count) in enumerate(SOUNDS):
        path = sound(folder / f"{number}.{suffix}", codec, rate, count)
        prompts.append((f"hear<audio>{codec}", {"audios": (path,)}))
    for number, (frames, fps, width, height) in enumerate(CLIPS):
        for wanted, least, most, limit in ((1.0, 1024, 16_384, 4), (2.0, 4096, 65_536, 32), (8.0, 1024, 2048, 768)):
            path = folder / f"{number}.mp4"
            path = path if path.exists() else clip(path, frames, fps, width, height)
            prompts.append(("<video>?", {"videos": (Video(path, wanted, least, most, limit),)}))
    both = {"images": (Image(data=picture(40, 90)), Image(data=picture(90, 40))), "audios": (folder / "0.wav",)}
    prompts.append(("<image>a<audio><image>b", {**both, "system": "Be brief."}))
    rows = [sample(number, prompt, **fields) for number, (prompt, fields) in enumerate(prompts)]
    return store.write_parquet(folder / "odd.parquet", rows).path


def truth(processor: Any, row: dict[str, Any], soundtrack: bool) -> int:
    """Tokens of the row when its media are really decoded and processed."""
    chat = media.messages(row, soundtrack=soundtrack)
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return int(media.processor_inputs(processor, text, *media.load(chat))["input_ids"].shape[-1])


@pytest.mark.parametrize("soundtrack", [True, False])
def test_lengths_are_those_of_the_processor_on_every_row(
    processor: Any, toy_data: Path, odd: Path, soundtrack: bool
) -> None:
    counter = lengths.Counter(processor, soundtrack)
    for file in (toy_data / "train.parquet", odd):
        rows = list(store.read_rows(file))
        found = list(counter.count(rows))
        assert not [one for one in found if "fault" in one]
        assert [one["text"] + one["media"] for one in found] == [truth(processor, row, soundtrack) for row in rows]


@pytest.mark.parametrize(
    "options", [{"min_pixels": 4096, "max_pixels": 16_384}, {"images_kwargs": {"do_resize": False}}]
)
def test_the_processors_arguments_count(processor: Any, options: dict[str, Any]) -> None:
    row = sample(0, "<image>", images=(Image(data=picture(320, 96)),)).to_row()
    (found,) = lengths.Counter(processor, options=options).count([row])
    chat = media.messages(row)
    text = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = media.processor_inputs(processor, text, *media.load(chat), **options)
    assert found["text"] + found["media"] == inputs["input_ids"].shape[-1]


@given(st.integers(1, 3000), st.floats(1, 120), st.floats(0.1, 60), st.integers(1, 800))
def test_frames_are_those_that_decoding_takes(total: int, source_fps: float, fps: float, most: int) -> None:
    ours = tokens.frame_indices(total, source_fps, fps, most)
    assert ours == media.frame_indices(total, source_fps, fps, most)


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 300), st.integers(0, 300))
def test_sizes_are_those_of_decoding(height: int, width: int, least: int, more: int) -> None:
    budget = least * 1024, (least + more) * 1024
    assert tokens.fit_frame(height, width, *budget) == media.fit_pixels(height, width, *budget)


@pytest.mark.parametrize("size", [(10, 3000), (31, 33), (4000, 3000), (1, 199), (17, 16)])
def test_pictures_are_fitted_as_the_image_processor_fits_them(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    for least, most in ((1024, 65_536), (3136, 12_845_056), (262_144, 524_288)):
        if max(size) <= 200 * min(size):
            fitted = tokens.fit_image(*size, 32, least, most)
            assert fitted == smart_resize(*size, factor=32, min_pixels=least, max_pixels=most)


@pytest.mark.parametrize("number", range(len(SOUNDS)))
def test_samples_are_counted_without_resampling(number: int, odd: Path) -> None:
    path = odd.parent / f"{number}.{SOUNDS[number][0]}"
    heard = max(tokens.mel_frames(headers.samples_16khz(path)) * tokens.HOP, LEAST_SAMPLES)
    assert abs(heard - media.audio(path).size) in (0, tokens.HOP)


def test_videos_have_the_facts_that_decoding_finds(odd: Path) -> None:
    for number, (frames, _, width, height) in enumerate(CLIPS):
        path = odd.parent / f"{number}.mp4"
        facts = headers.video(path)
        _, metadata = media.video({"video": str(path)})
        assert (facts.frames, facts.fps) == (metadata["total_num_frames"], metadata["fps"])
        assert (facts.frames, facts.width, facts.height) == (frames, width, height)
        assert facts.sound is not None


@pytest.mark.parametrize(("suffix", "codec"), [("wav", "pcm_s16le"), ("flac", "flac"), ("mp4", "aac")])
def test_a_header_that_promises_more_than_the_file_holds(tmp_path: Path, suffix: str, codec: str) -> None:
    """Either both refuse it, or both find the same."""
    path = sound(tmp_path / f"cut.{suffix}", codec, 16_000, 48_000)
    whole = path.read_bytes()
    for size in (len(whole) * 2 // 3, len(whole) - 40):
        path.write_bytes(whole[:size])
        try:
            heard = media.audio(path).size
        except InvalidInput:
            with pytest.raises(InvalidInput):
                headers.samples_16khz(path)
        else:
            assert 0 <= heard - headers.samples_16khz(path) <= tokens.HOP


@pytest.mark.parametrize(
    "row",
    [
        {"images": [{"bytes": b"no picture", "image": None}], "mark": "<image>"},
        {"images": [{"bytes": None, "image": None}], "mark": "<image>"},
        {"audios": ["/nowhere.wav"], "mark": "<audio>"},
        {"videos": [{"video": "/nowhere.mp4"}], "mark": "<video>"},
        {"audios": [], "mark": "<audio>"},
        {"images": [{"bytes": picture(1, 300), "image": None}], "mark": "<image>"},
    ],
)
def test_a_row_that_cannot_be_counted_has_a_fault_and_the_next_one_a_length(
    processor: Any, row: dict[str, Any]
) -> None:
    bad = {"prompt": [{"role": "user", "content": row["mark"]}], "images": [], "audios": [], "videos": [], **row}
    good = sample(1, "fine").to_row()
    first, second = lengths.Counter(processor).count([bad, good])
    assert set(first) == {"fault"}
    assert second["text"] > 3


def test_the_process_counts_as_the_module_does(checkpoint: Path, processor: Any, toy_data: Path, odd: Path) -> None:
    files = [(toy_data / "train.parquet", [0, 3, 31]), (odd, None)]
    with Counting(files, model=str(checkpoint), soundtrack=True) as counting:
        found = list(counting.lengths())
    rows = list(store.read_rows(odd))
    assert [(one.file, one.row) for one in found] == [(0, 0), (0, 3), (0, 31), *((1, row) for row in range(len(rows)))]
    counter = lengths.Counter(processor, soundtrack=True)
    assert [(one.text, one.media) for one in found[3:]] == [(one["text"], one["media"]) for one in counter.count(rows)]


def test_the_tiny_model_learns_its_tokens_from_the_training_prompts(toy_data: Path) -> None:
    from omnirl.engine import tiny
    from omnirl.engine.main import _prompts

    train = toy_data / "train.parquet"
    ours = lengths.load("tiny", str(train)).tokenizer
    theirs = tiny.make_tokenizer(_prompts(train))
    assert ours.get_vocab() == theirs.get_vocab()


def test_a_folder_that_is_no_checkpoint_is_named(toy_data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no processor"):
        lengths.load(str(tmp_path), None)
    with (
        Counting([(toy_data / "train.parquet", None)], model=str(tmp_path)) as counting,
        pytest.raises(EnvironmentLacks, match="holds no processor"),
    ):
        list(counting.lengths())


def test_a_process_that_falls_silent_is_stopped(toy_data: Path, checkpoint: Path) -> None:
    with Counting([(toy_data / "train.parquet", None)], model=str(checkpoint), silence_s=0.01) as counting:
        with pytest.raises(EnvironmentLacks, match="has not answered"):
            list(counting.lengths())
        process = counting._process
    assert process.returncode is not None
