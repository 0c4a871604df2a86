"""Sound: mono, 16 kHz, whole hops, from every container; and what is not whole is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from omnirl.engine import audio as audio_module
from omnirl.engine import media
from omnirl.errors import InvalidInput
from tests.engine.clips import numbered, spoil, tone, write_clip, write_sound

CODECS = {
    "m4a": ("aac", 44_100),
    "aac": ("aac", 44_100),
    "mp4": ("aac", 48_000),
    "mp3": ("libmp3lame", 44_100),
    "ogg": ("libopus", 48_000),
    "opus": ("libopus", 48_000),
    "webm": ("libopus", 48_000),
    "flac": ("flac", 22_050),
    "wav": ("pcm_s24le", 8_000),
}


def pitch_hz(samples: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(samples.size)))
    return float(np.argmax(spectrum)) * 16_000 / samples.size


@pytest.mark.parametrize("suffix", CODECS)
def test_every_container(tmp_path: Path, suffix: str) -> None:
    codec, rate_hz = CODECS[suffix]
    path = write_sound(tmp_path / f"tone.{suffix}", tone(2.0, rate_hz), rate_hz, codec)
    heard = media.audio(path)
    assert (heard.dtype, heard.ndim, heard.size % 160) == (np.float32, 1, 0)
    assert 32_000 <= heard.size <= 32_000 + 2_400  # an encoder may add up to 0.15 s
    assert pitch_hz(heard[:32_000]) == pytest.approx(440, abs=1)
    assert np.sqrt((heard[8_000:24_000] ** 2).mean()) == pytest.approx(0.5 / 2**0.5, abs=0.02)


def test_16001_samples_are_101_hops(tmp_path: Path) -> None:
    heard = media.audio(write_sound(tmp_path / "a.wav", tone(16_001 / 16_000), 16_000, "pcm_s16le"))
    assert heard.size == 101 * 160
    assert not heard[16_001:].any()
    assert np.abs(heard[:16_001] - tone(16_001 / 16_000)).max() < 1e-4


@pytest.mark.parametrize(
    ("layout", "channels", "expected"),
    [("stereo", [1.0, 1.0], 1.0), ("stereo", [1.0, 0.0], 0.5), ("5.1", [1.0, 0.5, 0.0, 0.0, 1.0, 0.5], 0.5)],
)
def test_mono_is_the_mean_of_the_channels(tmp_path: Path, layout: str, channels: list[float], expected: float) -> None:
    samples = np.outer(channels, tone(0.5, 48_000, amplitude=0.9)).astype(np.float32)
    heard = media.audio(write_sound(tmp_path / "a.flac", samples, 48_000, "flac", layout=layout))
    alone = media.audio(write_sound(tmp_path / "b.flac", tone(0.5, 48_000, amplitude=0.9), 48_000, "flac"))
    assert np.abs(heard - expected * alone).max() < 1e-3


def test_a_soundtrack_may_be_longer_than_its_frames(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", numbered(20), sound=tone(3.0, hz=300))
    heard = media.soundtrack(path)
    assert heard.size == pytest.approx(48_000, abs=2_400)
    assert pitch_hz(heard) == pytest.approx(300, abs=1)


def test_a_song_with_a_cover_is_heard(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "song.mp3", tone(1.0, 44_100), 44_100, "libmp3lame", cover=True)
    assert pitch_hz(media.audio(path)[:16_000]) == pytest.approx(440, abs=2)


def wav(seconds_told: float, samples: np.ndarray) -> bytes:
    """A WAV file of 16 kHz whose header says how long it is, and who knows what follows."""
    told = round(seconds_told * 16_000) * 2
    head = (
        b"RIFF" + struct.pack("<I", told + 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16)
    )
    return head + b"data" + struct.pack("<I", told) + (samples * 32767).astype("<i2").tobytes()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cannot decode audio"),
        (wav(0, np.empty(0)), "empty|cannot decode"),
    ],
)
def test_files_without_sound(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "cut.wav"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=why) as caught:
        media.audio(path)
    assert "cut.wav" in caught.value.message


@pytest.mark.parametrize(("suffix", "codec"), [("flac", "flac"), ("mp4", "aac")])
def test_a_file_cut_short_is_named(tmp_path: Path, suffix: str, codec: str) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 64_000).astype(np.float32)
    path = write_sound(tmp_path / f"cut.{suffix}", noise, 16_000, codec, options={"movflags": "faststart"})
    assert media.audio(path).size == pytest.approx(64_000, abs=2_400)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidInput, match=r"cut\..* only \d\.\d\d s decode; its header says 4\.\d\d s"):
        media.audio(path)


def test_a_stream_without_a_known_end_is_read_to_its_end(tmp_path: Path) -> None:
    data = bytearray(wav(0, tone(1.0)))
    data[40:44] = b"\xff" * 4
    path = tmp_path / "piped.wav"
    path.write_bytes(data)
    assert media.audio(path).size == 16_000


def test_a_damaged_packet_is_passed_over_and_a_damaged_half_is_named(tmp_path: Path) -> None:
    make: Callable[[], Path] = lambda: write_sound(tmp_path / "a.m4a", tone(4.0), 16_000, "aac")  # noqa: E731
    whole = media.audio(make()).size
    assert whole - 2 * 1024 - 160 <= media.audio(spoil(make(), [30], "audio")).size <= whole
    with pytest.raises(InvalidInput, match=r"a\.m4a` only \d\.\d\d s decode"):
        media.audio(spoil(make(), range(20, 50), "audio"))


def test_a_rate_that_changes_on_the_way(tmp_path: Path) -> None:
    """Two MP3 files joined end to end, as radio recordings come."""
    parts = [(44_100, "stereo", 400.0), (48_000, "mono", 800.0)]
    data = b""
    for rate_hz, layout, hz in parts:
        samples = np.stack([tone(1.0, rate_hz, hz)] * (2 if layout == "stereo" else 1))
        data += write_sound(tmp_path / "part.mp3", samples, rate_hz, "libmp3lame", layout=layout).read_bytes()
    path = tmp_path / "joined.mp3"
    path.write_bytes(data)
    heard = media.audio(path)
    assert heard.size == pytest.approx(32_000, abs=4_000)
    assert pitch_hz(heard[2_000:14_000]) == pytest.approx(400, abs=3)
    assert pitch_hz(heard[-12_000:-2_000]) == pytest.approx(800, abs=3)


def test_endless_audio_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_sound(tmp_path / "long.flac", tone(3.0), 16_000, "flac")
    monkeypatch.setattr(audio_module, "MAX_DURATION_S", 2)
    with pytest.raises(InvalidInput, match=r"long\.flac` is longer than 2 s"):
        media.audio(path)
