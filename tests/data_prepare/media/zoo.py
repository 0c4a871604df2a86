"""Media of every kind that a data set may hold, whole and broken, made with the real programs."""

from __future__ import annotations

import shutil
import struct
import subprocess
import wave
from pathlib import Path

BASE = ["-f", "lavfi", "-i", "testsrc2=size=160x120:rate=15:duration=4,noise=alls=8:allf=t"]
TONE = ["-f", "lavfi", "-i", "sine=frequency=440:sample_rate=44100:duration=4"]
H264 = ["-c:v", "libx264", "-preset", "ultrafast", "-crf", "28", "-pix_fmt", "yuv420p", "-g", "30"]
AAC = ["-c:a", "aac", "-b:a", "64k"]

WHOLE = {"video": "", "soundtrack": "", "audio": ""}
CUT = {"video": "truncated_video", "soundtrack": "truncated_video", "audio": "truncated_audio"}
MUTE = {"video": "", "soundtrack": "no_audio", "audio": "no_audio"}
SOUND = {"video": "no_video", "soundtrack": "no_video", "audio": ""}
BAD = {"video": "undecodable_video", "soundtrack": "undecodable_video", "audio": "undecodable_audio"}
LIST = {"video": "playlist", "soundtrack": "playlist", "audio": "playlist"}
BAD_SOUND = {"video": "", "soundtrack": "undecodable_audio", "audio": "undecodable_audio"}
SHORT_SOUND = {"video": "no_video", "soundtrack": "no_video", "audio": "truncated_audio"}

Expected = dict[str, dict[str, str]]


def ff(*words: str | Path) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-nostdin", *map(str, words)], check=True, timeout=60)


def cut(source: Path, target: Path, share: float) -> None:
    data = source.read_bytes()
    target.write_bytes(data[: int(len(data) * share)])


def write_wav(path: Path, seconds: float, value: int = 9_000, rate: int = 16_000) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        half = struct.pack("<h", value) * 20 + struct.pack("<h", -value) * 20
        file.writeframes(half * int(seconds * rate / 40))


def build(folder: Path) -> Expected:
    """Fill `folder`; what is expected of each file for each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    expected: Expected = {}

    def add(name: str, reasons: dict[str, str]) -> Path:
        expected[name] = reasons
        return folder / name

    clip = add("clip.mp4", WHOLE)
    ff(*BASE, *TONE, *H264, *AAC, "-movflags", "+faststart", clip)
    _containers(clip, add)
    _cuts(folder, clip, add)
    _streams(clip, add)
    _sounds(folder, add)
    _impostors(folder, clip, add)
    return expected


def _containers(clip: Path, add) -> None:
    for name in ("plain.mp4", "clip.mkv", "clip.mov", "clip.ts", "clip.flv"):
        ff("-i", clip, "-c", "copy", add(name, WHOLE))
    ff("-i", clip, "-c", "copy", "-movflags", "frag_keyframe+empty_moov", add("fragments.mp4", WHOLE))
    ff("-i", clip, "-c", "copy", "-live", "1", add("live.mkv", WHOLE))
    ff("-i", clip, "-c:v", "mpeg4", "-c:a", "mp3", add("clip.avi", WHOLE))
    ff("-i", clip, "-c:v", "mpeg4", "-c:a", "pcm_s16le", add("pcm.avi", WHOLE))
    ff("-i", clip, "-t", "2", "-c:v", "libvpx", "-deadline", "realtime", "-c:a", "libopus", add("clip.webm", WHOLE))
    ff("-i", clip, "-c:v", "wmv2", "-c:a", "wmav2", add("clip.wmv", WHOLE))
    ff("-i", clip, "-c:v", "mpeg2video", "-r", "25", "-c:a", "mp2", add("clip.mpg", WHOLE))
    ff("-i", clip, "-t", "1", "-vf", "fps=5", "-an", add("clip.gif", MUTE))


def _cuts(folder: Path, clip: Path, add) -> None:
    cut(clip, add("cut.mp4", CUT), 0.4)
    cut(clip, add("cut_at_90.mp4", CUT), 0.9)
    cut(clip, add("cut_at_99.mp4", WHOLE), 0.99)
    cut(folder / "plain.mp4", add("no_index.mp4", BAD), 0.6)
    for name in ("clip.mkv", "clip.flv", "clip.avi", "clip.wmv", "clip.webm", "pcm.avi"):
        cut(folder / name, add(f"cut_{name}", CUT), 0.5)
    # Nothing in these promises a length, so what is there is all there is.
    cut(folder / "clip.ts", add("cut.ts", WHOLE), 0.5)
    data = clip.read_bytes()
    half = len(data) * 4 // 10
    add("reserved.mp4", CUT).write_bytes(data[:half] + bytes(len(data) - half))
    damaged = bytearray(data)
    damaged[-60:-8] = bytes(range(52))
    add("damaged_end.mp4", WHOLE).write_bytes(damaged)


def _streams(clip: Path, add) -> None:
    ff("-i", clip, "-c", "copy", "-an", add("mute.mp4", MUTE))
    ff("-i", clip, "-c", "copy", "-vn", "-f", "mp4", add("sound_only.mp4", SOUND))
    ff("-i", clip, "-c", "copy", "-bsf:a", "noise=amount=2", add("noise.mp4", BAD_SOUND))
    ff("-i", clip, "-c:v", "copy", "-af", "volume=0", *AAC, add("silent.mp4", WHOLE))
    ff("-i", clip, "-c:v", "copy", "-af", "volume='gte(t,2)':eval=frame", *AAC, add("late_sound.mp4", WHOLE))
    two = ["-filter_complex", "[0:a]volume=0[quiet]", "-map", "0:v", "-map", "[quiet]", "-map", "0:a"]
    ff("-i", clip, *two, "-c:v", "copy", *AAC, add("two_tracks.mp4", WHOLE))
    ff("-i", clip, "-frames:v", "1", *H264, "-an", add("one_frame.mp4", MUTE))
    ff("-i", clip, "-frames:v", "3", *H264, "-t", "0.2", *AAC, add("three_frames.mp4", WHOLE))
    ff("-i", clip, "-c", "copy", "-metadata:s:v", "rotate=90", add("turned.mp4", WHOLE))
    ff("-itsoffset", "2.5", "-i", clip, "-i", clip, "-map", "1:v", "-map", "0:a", "-c", "copy", add("late.mkv", WHOLE))
    ff("-i", clip, "-map", "0:a", "-map", "0:v", "-c", "copy", add("sound_first.mp4", WHOLE))
    ff("-i", clip, "-map", "0:v", "-map", "0:a", "-c:v", "copy", "-t", "4", "-c:a", "flac", add("flac.mkv", WHOLE))


def _sounds(folder: Path, add) -> None:
    write_wav(add("tone.wav", SOUND), 2)
    write_wav(add("silent.wav", SOUND), 2, value=0)
    write_wav(add("hiss.wav", SOUND), 2, value=1)
    tone = (folder / "tone.wav").read_bytes()
    empty = {"video": "no_video", "soundtrack": "no_video", "audio": "truncated_audio"}
    add("header_only.wav", empty).write_bytes(tone[:44])
    add("no_samples.wav", {**empty, "audio": "empty_audio"}).write_bytes(tone[:40] + bytes(4))
    add("cut_to_29_samples.wav", SHORT_SOUND).write_bytes(tone[: 44 + 58])
    add("cut_by_8_percent.wav", SHORT_SOUND).write_bytes(tone[: int(len(tone) * 0.92)])
    add("cut_by_2_percent.wav", SOUND).write_bytes(tone[: int(len(tone) * 0.98)])
    # What a program that writes to a pipe leaves in the header.
    add("unknown_length.wav", SOUND).write_bytes(tone[:40] + b"\xff" * 4 + tone[44:])
    for name in ("tone.flac", "tone.mp3", "tone.ogg", "tone.m4a", "tone.aac", "tone.opus", "tone.aiff", "tone.au"):
        ff(*TONE, add(name, SOUND))
    ff(*TONE, "-write_xing", "0", add("no_xing.mp3", SOUND))
    ff(*TONE, "-q:a", "5", "-ar", "22050", add("vbr.mp3", SOUND))
    ff(*TONE, "-t", "0.08", add("short.mp3", SOUND))
    for name in ("tone.flac", "tone.mp3", "tone.aiff", "tone.au", "vbr.mp3"):
        cut(folder / name, add(f"cut_{name}", SHORT_SOUND), 0.5)
    for name in ("tone.ogg", "tone.aac", "no_xing.mp3"):
        cut(folder / name, add(f"cut_{name}", SOUND), 0.5)
    picture = ["-f", "lavfi", "-i", "testsrc2=size=64x64:rate=1:duration=1"]
    cover = ["-map", "0:a", "-map", "1:v", "-c:v", "mjpeg", "-disposition:v", "attached_pic"]
    for name in ("cover.mp3", "cover.m4a"):
        ff(*TONE, *picture, *cover, "-frames:v", "1", add(name, SOUND))


def _impostors(folder: Path, clip: Path, add) -> None:
    shutil.copy(clip, add("movie.wav", WHOLE))
    shutil.copy(folder / "tone.wav", add("wave.mp4", SOUND))
    shutil.copy(folder / "tone.mp3", add("really_mp3.wav", SOUND))
    for number, name in enumerate(
        ("-i.mp4", "a:b.mp4", "%03d.mp4", "http:x.mp4", "clip*.mp4", "a b'c\"|&.mp4", "\n.mp4")
    ):
        shutil.copy(clip if number % 2 else folder / "mute.mp4", add(name, WHOLE if number % 2 else MUTE))
    shutil.copy(clip, add("é" * 125 + "a.mp4", WHOLE))
    add("text.mp4", BAD).write_text("not a movie\n" * 200)
    add("random.mp4", BAD).write_bytes(bytes((i * 7919 + i * i) % 251 for i in range(20_000)))
    add("zeros.mp4", BAD).write_bytes(bytes(20_000))
    ff("-i", clip, "-frames:v", "1", "-f", "image2", add("picture.jpg", BAD))
    near, far = folder / "clip.mp4", "http://127.0.0.1:9/x.mp4"
    lists = {
        "hls.mp4": f"#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nfile:{near}\n#EXT-X-ENDLIST\n",
        "concat.wav": f"ffconcat version 1.0\nfile '{near}'\n",
        "concat_without_head.mp4": f"file '{near}'\n",
        "dash.mp4": f'<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{far}</BaseURL></MPD>',
        "session.mp4": "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nm=audio 9 RTP/AVP 0\r\n",
        "winamp.mp4": f"[playlist]\nFile1={near}\nNumberOfEntries=1\n",
        "address.mp4": far,
        "protocol.mp4": f"concat:{near}|{near}",
    }
    for name, text in lists.items():
        add(name, LIST).write_text(text)
    add("outer_track.mov", LIST).write_bytes(with_outer_track(clip))


def with_outer_track(clip: Path) -> bytes:
    """A QuickTime file whose video data are said to be in another file: the same boxes, another data reference."""
    data = bytearray(clip.read_bytes())
    at = data.index(b"dref")
    # `url ` with the flag that says "in this file" becomes one with a name; the box keeps its length of 12, so its
    # neighbour, the sample table, is moved into the name of the reference.
    entry = at + 12
    assert data[entry + 4 : entry + 8] == b"url "
    data[entry + 8 : entry + 12] = bytes(4)
    name = b"file:///etc/hostname\0"
    data[entry : entry + 4] = struct.pack(">I", 12 + len(name))
    data[entry + 12 : entry + 12] = name
    where = at - 4
    for kind in (b"dref", b"dinf", b"minf", b"mdia", b"trak", b"moov"):
        where = data.rindex(kind, 0, where + 8) - 4
        length = struct.unpack(">I", data[where : where + 4])[0]
        data[where : where + 4] = struct.pack(">I", length + len(name))
    return bytes(data)
