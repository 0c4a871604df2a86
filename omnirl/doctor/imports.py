"""What `import` would find: the wrong package named ffmpeg, a file that hides a package, a second video reader."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from omnirl.doctor.check import Check, Target
from omnirl.doctor.packages import find

HIDEABLE = ("av", "ffmpeg", "numpy", "omegaconf", "PIL", "ray", "tokenizers", "torch", "transformers", "verl", "vllm")
"""Modules that a file of the same name in the working folder would hide from Ray's workers."""
IMPOSTORS = ("ffmpeg", "python-ffmpeg")
"""Packages that install a module `ffmpeg` which is not ffmpeg-python's."""
_FORCED = "FORCE_QWENVL_VIDEO_READER"


def check(target: Target) -> Iterator[Check]:
    """The module `ffmpeg`, files in the working folder, and readers of video."""
    yield ffmpeg_module(sys.path)
    yield hidden(target.folder)
    yield video_reader(sys.path, target.environ.get(_FORCED))


def ffmpeg_module(path: Sequence[str]) -> Check:
    """Whether `import ffmpeg` finds ffmpeg-python."""
    name, wanted = "ffmpeg-python", "the module `ffmpeg` of ffmpeg-python"
    again = "pip install --force-reinstall --no-deps ffmpeg-python"
    impostors = [f"{bad.name} {bad.version}" for one in IMPOSTORS if (bad := find(one, path))]
    if impostors:
        remove = f"pip uninstall -y {' '.join(text.split()[0] for text in impostors)} && {again}"
        return Check(name, "fail", f"installed: {', '.join(impostors)}, which bring another `ffmpeg`", wanted, remove)
    spec = PathFinder.find_spec("ffmpeg", list(path))
    package = find("ffmpeg-python", path)
    if package is None:
        found = f"`import ffmpeg` finds {spec.origin}" if spec and spec.origin else "not installed"
        return Check(name, "fail", found, wanted, "pip install ffmpeg-python")
    if spec is None or spec.origin is None:
        return Check(name, "fail", f"{package.version}, without its module", wanted, again)
    origin = Path(spec.origin)
    if not (origin.parent.parent / f"ffmpeg_python-{package.version}.dist-info").is_dir():
        return Check(
            name, "fail", f"hidden by {origin}", wanted, f"mv {origin} {origin.with_name('my_' + origin.name)}"
        )
    return Check(name, "ok", f"{package.version}, {origin.parent}")


def hidden(folder: Path) -> Check:
    """Whether a file or package in the working folder hides one of the packages of a run."""
    found = [
        place
        for name in HIDEABLE
        for place in (folder / f"{name}.py", folder / name / "__init__.py")
        if place.is_file()
    ]
    if not found:
        return Check("working folder", "ok", "hides no package")
    shown = ", ".join(str(place) for place in found[:3])
    named = found[0] if found[0].name != "__init__.py" else found[0].parent
    mend = f"mv {named} {named.with_name('my_' + named.name)}"
    return Check("working folder", "fail", f"Python would import {shown}", "no file named like a package", mend)


def video_reader(path: Sequence[str], forced: str | None) -> Check:
    """Which reader decodes video: always PyAV, whatever else is installed."""
    reader = find("av", path)
    others = [f"{one.name} {one.version}" for name in ("torchcodec", "decord", "decord2") if (one := find(name, path))]
    unused = f"; {', '.join(others)} not used" if others else ""
    if reader is None:
        return Check("video reader", "warn", f"PyAV is not installed{unused}", "PyAV", "pip install 'av>=18,<20'")
    found = f"PyAV {reader.version}{unused}"
    if forced:
        return Check("video reader", "warn", f"{found}; {_FORCED}={forced} has no effect", "PyAV", f"unset {_FORCED}")
    return Check("video reader", "ok", found)
