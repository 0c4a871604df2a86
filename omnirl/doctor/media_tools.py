"""What decodes media: the programs ffmpeg and ffprobe, and PyAV with the FFmpeg that it brings."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Mapping

from omnirl.doctor.check import Check, Target
from omnirl.doctor.child import ask, ask_module
from omnirl.doctor.packages import find

DECODERS = {
    "video": ("h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg"),
    "sound": ("aac", "mp3", "opus", "vorbis", "flac", "pcm_s16le"),
}
"""What data sets of video and sound come in."""
READERS = "omnirl.doctor.probes.readers"
_INSTALL = "sudo apt-get install ffmpeg  # or: conda install -c conda-forge ffmpeg"
_TIMEOUT_S = 15.0
_VERSION = re.compile(r"^(?:ffmpeg|ffprobe) version (\S+)")
_DECODER = re.compile(r"^\s[VASFSXBD.]{6}\s(\S+)", re.MULTILINE)
_OTHER_NAMES = {"av1": ("libdav1d", "libaom-av1"), "mp3": ("mp3float",), "opus": ("libopus",), "vorbis": ("libvorbis",)}
"""Decoders of the same format."""


def check(target: Target) -> Iterator[Check]:
    """The programs on the PATH, and PyAV."""
    yield from programs(target.environ)
    yield pyav(target.environ, needed=target.recipe is not None)


def programs(environ: Mapping[str, str]) -> Iterator[Check]:
    """Which ffmpeg and ffprobe are on the PATH, of which version, and what ffmpeg decodes.

    Without them PyAV alone judges media when data are converted, hence no failure where they are absent; a program that
    does not run is one, since it is used.
    """
    versions = {}
    for name in ("ffmpeg", "ffprobe"):
        program = shutil.which(name, path=environ.get("PATH", ""))
        wanted = "the program that checks media when data are converted"
        if program is None:
            yield Check(name, "warn", "not on the PATH; PyAV judges media alone", wanted, _INSTALL)
            continue
        answer = ask([program, "-version"], timeout_s=_TIMEOUT_S, environ=environ)
        version = _VERSION.match(answer.out)
        if answer.fault or version is None:
            found = f"{program} is no working {name}: {answer.said}"
            yield Check(name, "fail", found, wanted, f"type -a {name}; {_INSTALL}")
            continue
        versions[name] = version[1]
        yield Check(name, "ok", f"{version[1]}, {program}")
        if name == "ffmpeg":
            yield from _decoders(program, environ)
    if len(set(versions.values())) > 1:
        found = f"ffmpeg {versions['ffmpeg']} beside ffprobe {versions['ffprobe']}"
        yield Check("ffmpeg + ffprobe", "warn", found, "both of one version", "type -a ffmpeg ffprobe")


def pyav(environ: Mapping[str, str], *, needed: bool) -> Check:
    """Whether PyAV loads, and decodes what data sets come in; a failure only where it is `needed` or installed."""
    wanted = "PyAV with its own FFmpeg"
    again = "pip install --force-reinstall --only-binary=:all: 'av>=18,<20'"
    if find("av", sys.path) is None:
        return Check("PyAV", "fail" if needed else "warn", "not installed", wanted, "pip install 'av>=18,<20'")
    codecs = [codec for kind in DECODERS.values() for codec in kind]
    answer, fault = ask_module(READERS, *codecs, timeout_s=_TIMEOUT_S, environ=environ)
    if answer is None:
        return Check("PyAV", "fail", f"it cannot be loaded: {fault}", wanted, again)
    found = f"{answer['version']} (libavcodec {answer['libavcodec']})"
    if answer["lacking"]:
        return Check("PyAV", "fail", f"{found} does not decode {', '.join(answer['lacking'])}", wanted, again)
    return Check("PyAV", "ok", found)


def lacking(listing: str) -> list[str]:
    """Formats that no decoder in the output of `ffmpeg -decoders` reads."""
    there = set(_DECODER.findall(listing))
    return [codec for kind in DECODERS.values() for codec in kind if not there & {codec, *_OTHER_NAMES.get(codec, ())}]


def _decoders(program: str, environ: Mapping[str, str]) -> Iterator[Check]:
    answer = ask([program, "-hide_banner", "-decoders"], timeout_s=_TIMEOUT_S, environ=environ)
    absent = lacking(answer.out)
    count = sum(map(len, DECODERS.values()))
    if answer.fault:
        yield Check("decoders", "warn", f"`{program} -decoders` {answer.fault}", "a list of decoders", _INSTALL)
    elif absent:
        found = f"{program} does not decode {', '.join(absent)}"
        yield Check("decoders", "warn", found, f"{count} common formats", _INSTALL)
    else:
        yield Check("decoders", "ok", f"all {count} common formats of video and sound")
