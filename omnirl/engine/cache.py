"""A least-recently-used cache bounded by bytes, and content keys for media."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

Value = TypeVar("Value")


class BoundedCache:
    """Keeps the newest values until their sizes pass `max_bytes`; safe to share between threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value under `key`, made by `make` (outside the lock) when it is not there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key][0]
        value = make()
        size = byte_size(value)
        with self._lock:
            if key not in self._values and size <= self.max_bytes:
                self._values[key] = value, size
                self._bytes += size
                while self._bytes > self.max_bytes:
                    _, (_, freed) = self._values.popitem(last=False)
                    self._bytes -= freed
        return value

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[type[BoundedCache], tuple[int]]:
        """Copies and pickles start empty: values can be made again, and a lock cannot travel."""
        return BoundedCache, (self.max_bytes,)


def byte_size(value: Any) -> int:
    """Bytes of the arrays, tensors and images inside `value`."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Image.Image):
        return value.width * value.height * len(value.getbands())
    if isinstance(value, dict):
        return sum(byte_size(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(byte_size(item) for item in value)
    return 64


def content_key(*values: Any) -> bytes:
    """A digest of media values by content: equal arrays, tensors and images give equal keys in every process."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        _feed(digest, value)
    return digest.digest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, Image.Image):
        digest.update(f"image {value.mode} {value.size}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)}".encode())
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        digest.update(f"list {len(value)}".encode())
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
