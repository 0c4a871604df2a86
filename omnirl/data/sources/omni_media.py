"""Where the media files of Omni-Preference lie: the records name them as they lay on its authors' machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from omnirl.data.preference import Modality
from omnirl.data.sources.folder import Folder
from omnirl.errors import InvalidInput

MOUNT = "/data/"
"""Below which the records' paths begin."""
BELOW = {"image": "", "video": "video-dataset/"}
"""What `MOUNT` is in the input folder."""
AUDIO = "audio_files"
VIDEO_SUFFIXES = (".mp4", ".webm", ".mkv", ".mov", ".avi")

_REMEMBERED = 1 << 16
_SHORT = 512
"""Longer names are looked up anew each time, so that what is remembered stays small."""


class Found(NamedTuple):
    """A media file that a record names: its absolute path, a key that is the same for all names of the file, and
    whether there is a file at all."""

    path: Path
    key: bytes
    exists: bool


class MediaFiles:
    """The media files of one modality below `root`.

    Raises InvalidInput when the folder of the sounds leads out of `root`.
    """

    def __init__(self, root: Path, modality: Modality, *, allow_outside: bool = False) -> None:
        self._modality = modality
        self._folder = Folder(root, allow_outside=allow_outside)
        self._real_root = os.path.realpath(root)
        self._sounds = self._index() if modality == "audio" else {}
        self._known = lru_cache(_REMEMBERED)(self._find)

    def find(self, name: str) -> Found | str:
        """The file that a record calls `name`, or why it can have none.

        Reasons: `ambiguous_media` (several sounds of that name) and those of `Folder.resolve`. A file that is not there
        has a path too.
        """
        return self._known(name) if len(name) <= _SHORT else self._find(name)

    def _find(self, name: str) -> Found | str:
        path = self._sound(name) if self._modality == "audio" else self._mounted(name)
        if isinstance(path, str):
            return path
        real = os.path.realpath(path)
        key = hashlib.sha256(os.fsencode(os.path.relpath(real, self._real_root))).digest()[:16]
        return Found(path, key, _is_file(path))

    def _mounted(self, name: str) -> Path | str:
        below = name.removeprefix(MOUNT)
        reason = self._folder.resolve(below)
        if isinstance(reason, str):
            return reason
        prefix = BELOW[self._modality]
        path = self._folder.resolve(prefix + below.removeprefix(prefix))
        if isinstance(path, str) or self._modality != "video" or _is_file(path):
            return path
        for suffix in VIDEO_SUFFIXES:
            other = self._folder.resolve(f"{prefix}{below.removeprefix(prefix)}{suffix}")
            if isinstance(other, Path) and _is_file(other):
                return other
        return path

    def _sound(self, name: str) -> Path | str:
        if self._folder.resolve(name) in ("remote_path", "invalid_path"):
            return str(self._folder.resolve(name))
        last = name.rpartition("/")[2]
        if last in ("", ".", ".."):
            return "invalid_path"
        found = self._sounds.get(last, f"{AUDIO}/{last}")
        return "ambiguous_media" if found is None else self._folder.resolve(found)

    def _index(self) -> dict[str, str | None]:
        """Name -> path below the root of each file in the tree of sounds; None for a name that several have."""
        if isinstance(self._folder.resolve(AUDIO), str):
            raise InvalidInput(
                f"`{self._folder.root / AUDIO}` is a link that leads out of the input",
                hint="give `--allow-outside` if that is meant",
            )
        found: dict[str, str | None] = {}
        for name, path in self._walk():
            found[name] = None if name in found else path
        return found

    def _walk(self) -> Iterator[tuple[str, str]]:
        """Each file's name and path below the root; folders behind links too, where they may be followed."""
        root = str(self._folder.root)
        seen: set[str] = set()
        waiting = [AUDIO]
        while waiting:
            folder = waiting.pop()
            real = os.path.realpath(f"{root}/{folder}")
            if real in seen or isinstance(self._folder.resolve(folder), str):
                continue
            seen.add(real)
            try:
                with os.scandir(real) as entries:
                    inside = sorted((entry.name, entry.is_dir()) for entry in entries)
            except OSError:  # not there, or closed to this user: its files are then missing
                continue
            for name, is_folder in inside:
                if is_folder:
                    waiting.append(f"{folder}/{name}")
                else:
                    yield name, f"{folder}/{name}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # behind a folder that is closed to this user, say
        return False
