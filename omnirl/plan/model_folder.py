"""What a checkpoint's folder says without its weights being loaded: config.json, and safetensors headers."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

from omnirl.errors import InvalidInput

_MOST_CONFIG_BYTES, _MOST_HEADER_BYTES, _MOST_FILES = 4 << 20, 64 << 20, 1024
_MOST_PARAMETERS = 1 << 46
_HINT = "give a Qwen3-Omni checkpoint"


def config(folder: Path) -> dict[str, Any]:
    """The object in config.json.

    Raises:
        InvalidInput: it cannot be read, or holds no object.
    """
    path = folder / "config.json"
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise InvalidInput(f"`{path}` is larger than any configuration", hint=_HINT)
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"`{path}` cannot be read: {error}", hint=_HINT) from error
    if not isinstance(found, dict):
        raise InvalidInput(f"`{path}` holds no object", hint=_HINT)
    return found


def parameters(folder: Path, *, prefix: str) -> int | None:
    """Parameters whose names begin with `prefix`, as the headers of the folder's safetensors files count them.

    None if there is no such file, or a header is missing or damaged.
    """
    total = 0
    for file in sorted(folder.glob("*.safetensors"))[:_MOST_FILES]:
        header = _header(file)
        if header is None:
            return None
        for name, entry in header.items():
            if name != "__metadata__" and name.startswith(prefix):
                shape = entry.get("shape") if isinstance(entry, dict) else None
                if not isinstance(shape, list) or not all(isinstance(size, int) and size >= 0 for size in shape):
                    return None
                total += prod(shape)
                if total > _MOST_PARAMETERS:
                    return None
    return total or None


def _header(file: Path) -> dict[str, Any] | None:
    """The header of a safetensors file: its length in eight bytes, then JSON."""
    try:
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            if size > _MOST_HEADER_BYTES:
                return None
            found = json.loads(opened.read(size))
    except (OSError, ValueError, RecursionError, struct.error):
        return None
    return found if isinstance(found, dict) else None
