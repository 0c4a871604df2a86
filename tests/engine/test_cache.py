"""Values are kept by content and by size, and never travel."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from omnirl.engine.cache import BoundedCache, byte_size, content_key


def array(kilobytes: int) -> np.ndarray:
    return np.zeros(1024 * kilobytes, np.uint8)


def fill(cache: BoundedCache, *keys: str, kilobytes: int = 1) -> list[str]:
    """Ask for the keys; returns those that had to be made."""
    made: list[str] = []

    def make(key: str) -> np.ndarray:
        made.append(key)
        return array(kilobytes)

    for key in keys:
        cache.get(key, lambda key=key: make(key))
    return made


def test_the_least_recently_used_goes_first() -> None:
    cache = BoundedCache(3 * 1024)
    assert fill(cache, "a", "b", "c", "a", "d") == ["a", "b", "c", "d"]
    assert fill(cache, "a", "c", "d") == []
    assert fill(cache, "b") == ["b"]
    assert len(cache) == 3


def test_size_counts_and_not_number() -> None:
    cache = BoundedCache(4 * 1024)
    fill(cache, "a", "b", "c", "d")
    assert fill(cache, "large", kilobytes=3) == ["large"]
    assert len(cache) == 2
    assert fill(cache, "d", "large") == []


def test_what_is_larger_than_the_cache_is_returned_and_not_kept() -> None:
    cache = BoundedCache(1024)
    fill(cache, "a")
    assert fill(cache, "huge", "huge", kilobytes=2) == ["huge", "huge"]
    assert fill(cache, "a") == []


def test_a_failure_is_not_remembered() -> None:
    cache = BoundedCache(1024)

    def fail() -> None:
        raise ValueError("does not decode")

    with pytest.raises(ValueError):
        cache.get("a", fail)
    assert fill(cache, "a") == ["a"]


def test_copies_and_pickles_start_empty() -> None:
    cache = BoundedCache(1024)
    fill(cache, "a")
    for other in (copy.deepcopy(cache), copy.copy(cache), pickle.loads(pickle.dumps(cache))):
        assert other.max_bytes == 1024
        assert len(other) == 0


def test_the_size_of_a_value() -> None:
    value = {"a": [np.zeros(3, np.float32), torch.zeros(2, dtype=torch.int64)], "b": (Image.new("RGB", (4, 5)),)}
    assert byte_size(value) == 12 + 16 + 60


MEDIA = {
    "array": np.arange(6, dtype=np.float32),
    "shape": np.arange(6, dtype=np.float32).reshape(2, 3),
    "type": np.arange(6, dtype=np.float64),
    "value": np.array([0, 1, 2, 3, 4, 6], np.float32),
    "empty": [],
    "list": [np.arange(6, dtype=np.float32)],
    "two": [np.arange(3, dtype=np.float32), np.arange(3, 6, dtype=np.float32)],
    "none": None,
    "red": Image.new("RGB", (2, 3), (255, 0, 0)),
    "blue": Image.new("RGB", (2, 3), (0, 0, 255)),
    "wide": Image.new("RGB", (3, 2), (255, 0, 0)),
    "grey": Image.new("L", (6, 3), 255),
    "video": (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), {"fps": 8.0, "frames_indices": [0, 3]}),
    "other frames": (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), {"fps": 8.0, "frames_indices": [0, 2]}),
}


def test_different_content_has_different_keys() -> None:
    assert len({content_key(value) for value in MEDIA.values()}) == len(MEDIA)


@pytest.mark.parametrize("name", MEDIA)
def test_copies_have_equal_keys(name: str) -> None:
    assert content_key(MEDIA[name]) == content_key(copy.deepcopy(MEDIA[name]))
    assert content_key(MEDIA[name]) == content_key(pickle.loads(pickle.dumps(MEDIA[name])))


def test_what_holds_the_values_does_not_matter() -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert content_key(numbers) == content_key(torch.from_numpy(numbers)) == content_key(numbers.T.copy().T)
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert content_key([numbers]) == content_key((numbers,))
    assert content_key([1, [2]]) != content_key([[1], 2])
