"""Names of files, as a data set's records give them, resolved below one folder and never out of it by accident."""

from __future__ import annotations

import os
import re
from collections.abc import Container
from pathlib import Path

from omnirl.errors import InvalidInput

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PLAIN = re.compile(r"\w[\w. -]{0,59}", re.ASCII)
"""A file's name in which nothing has to be looked at."""
_PLAIN_BYTES = 60
_MAX_PART_BYTES = 255
_MAX_PATH_BYTES = 4095
_MAX_CACHED = 1 << 16
"""Bound of the folders remembered by name: records may spell one folder in endlessly many ways."""


class _Everything(Container[str]):
    """Stands for the links of a folder that may not be listed: any name may be one."""

    def __contains__(self, name: object) -> bool:
        return True


class Folder:
    """A folder that media names are relative to.

    A folder's links are looked at once, when the first name in it is asked for. `root` itself may be reached through
    links. With `allow_outside`, `..` and links may lead out of it.

    Raises InvalidInput when the path of `root` is no UTF-8 text, so could stand in no row.
    """

    def __init__(self, root: Path, *, allow_outside: bool = False) -> None:
        self.root = root.absolute()
        self._text = str(self.root)
        try:
            self._root_bytes = len(self._text.encode())
        except UnicodeEncodeError as error:
            raise InvalidInput(f"the path of the folder {self._text!r} is not UTF-8", hint="rename it") from error
        self._allow_outside = allow_outside
        self._real_root = os.path.realpath(self.root)
        self._real_parents: dict[str, str] = {}
        self._links: dict[str, Container[str]] = {}
        self._known: dict[str, Container[str]] = {}
        """The links of each folder inside whose name is spellable, by that name."""

    def resolve(self, name: object) -> Path | str:
        """As `locate`: the path, or the reason."""
        path, reason = self.locate(name)
        return reason or Path(path)

    def locate(self, name: object) -> tuple[str, str]:
        """The absolute path of `name` and no reason, or none and the reason; whether the file exists is not looked at.

        Reasons: `invalid_path` (no text, nothing but white space, NUL, half a surrogate pair, a backslash, longer than
        a path can be), `remote_path` (`SCHEME://`, `file://` too), `absolute_path`, and `outside_folder` (`..` or a
        link that leads out).
        """
        if not isinstance(name, str):
            return "", "invalid_path"
        parent, slash, last = name.rpartition("/")
        links = self._known.get(parent + slash)
        if links is not None and last not in links and _PLAIN.fullmatch(last):
            return f"{self._text}/{name}", ""
        if not name.strip() or "\0" in name:
            return "", "invalid_path"
        if _SCHEME.match(name):
            return "", "remote_path"
        if not self._is_spellable(name):
            return "", "invalid_path"
        if name[0] == "/":
            return "", "absolute_path"
        path = f"{self._text}/{name}"
        goes_up = ".." in name and ".." in name.split("/")
        if not self._allow_outside:
            real = self._real_parent(parent)
            if not self._is_inside(real):
                return "", "outside_folder"
            if (last == ".." or last in self._links_in(real)) and not self._is_inside(os.path.realpath(path)):
                return "", "outside_folder"
        if goes_up:
            return os.path.realpath(path), ""
        self._remember(parent, slash)
        return str(Path(path)), ""

    def _remember(self, parent: str, slash: str) -> None:
        """Keep the links of a folder inside, unless it does not exist or its name has a part to be left out."""
        links = () if self._allow_outside else self._links.get(self._real_parents[parent])
        path = f"{self._text}/{parent}"
        if links is None or (parent and str(Path(path)) != path):
            return
        if len(os.fsencode(path)) + 1 + _PLAIN_BYTES <= _MAX_PATH_BYTES:
            if len(self._known) >= _MAX_CACHED:
                self._known.clear()
            self._known[parent + slash] = links

    def _is_spellable(self, name: str) -> bool:
        if "\\" in name:
            return False
        try:
            encoded = name.encode()
        except UnicodeEncodeError:
            return False
        if len(encoded) <= _MAX_PART_BYTES:
            return self._root_bytes + len(encoded) < _MAX_PATH_BYTES
        if self._root_bytes + len(encoded) >= _MAX_PATH_BYTES:
            return False
        return all(len(part) <= _MAX_PART_BYTES for part in encoded.split(b"/"))

    def _is_inside(self, real: str) -> bool:
        return real == self._real_root or real.startswith(self._real_root.rstrip("/") + "/")

    def _real_parent(self, parent: str) -> str:
        """Where the folder `parent` really is, links and `..` followed as the system does."""
        real = self._real_parents.get(parent)
        if real is None:
            if len(self._real_parents) >= _MAX_CACHED:
                self._real_parents.clear()
            real = self._real_parents[parent] = os.path.realpath(f"{self._text}/{parent}")
        return real

    def _links_in(self, real: str) -> Container[str]:
        """The names of the links in a folder; of one that does not exist, none, and that is not remembered."""
        links = self._links.get(real)
        if links is None:
            try:
                with os.scandir(real) as entries:
                    links = frozenset(entry.name for entry in entries if entry.is_symlink())
            except (FileNotFoundError, NotADirectoryError):
                return ()
            except OSError:
                links = _Everything()
            self._links[real] = links
        return links
