"""Verdicts that are kept: a warm cache, torn and foreign lines, and files that can be no cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnirl.data.media import Judge
from omnirl.data.media.cache import Cache
from omnirl.data.media.rules import Verdict
from omnirl.errors import EnvironmentLacks, InvalidInput
from tests.data_prepare.media.conftest import lines

# The cache


def test_a_warm_cache_looks_at_nothing(tmp_path: Path, tone: Path) -> None:
    cache, broken = tmp_path / "deep" / "cache.jsonl", tmp_path / "broken.wav"
    broken.write_bytes(b"no sound")
    questions = [("audio", tone), ("audio", broken), ("video", tone), ("image", tone), ("audio", tmp_path / "missing")]
    first: list[Verdict] = []
    for round_ in range(3):
        with Judge(cache=cache, workers=1) as judge:
            verdicts = [judge.ask(kind, path).result() for kind, path in questions]
            assert judge.probed == (4 if round_ == 0 else 0)
        first = first or verdicts
        assert verdicts == first
    assert [verdict.reason for verdict in first] == [
        "",
        "undecodable_audio",
        "no_video",
        "unreadable_image",
        "missing_audio",
    ]
    assert len(lines(cache)) == 4
    (tmp_path / "missing").write_bytes(tone.read_bytes())
    os.utime(tone, ns=(1, 1))
    with Judge(cache=cache, workers=1) as judge:
        assert [judge.ask(kind, path).result().reason for kind, path in questions][4] == ""
        assert judge.probed == 4


def test_verdicts_are_kept_as_they_come(tmp_path: Path, tone: Path) -> None:
    with Judge(cache=tmp_path / "cache.jsonl", workers=1) as judge:
        judge.ask("audio", tone).result()
        assert len(lines(tmp_path / "cache.jsonl")) == 1


@pytest.mark.parametrize("keep", [1, 30, -1])
def test_a_torn_line_is_repaired(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cache.jsonl"
    with_two = Cache(path)
    for name in ("a", "b"):
        with_two.put("audio", str(tmp_path / name), 5, 7, Verdict("", {"duration_s": 1.5}))
    with_two.close()
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:keep])
    torn = Cache(path)
    assert torn.get("audio", str(tmp_path / "a"), 5, 7) == Verdict("", {"duration_s": 1.5})
    torn.put("audio", str(tmp_path / "c"), 5, 7, Verdict("no_audio", {}))
    torn.close()
    again = Cache(path)
    assert again.get("audio", str(tmp_path / "c"), 5, 7) == Verdict("no_audio", {})
    assert again.get("audio", str(tmp_path / "a"), 5, 7) is not None
    again.close()


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"\xff\xfe", b"{" * 70_000, b'{"version":1}', b'{"version":0,"kind":"audio"}', b"null", b"9" * 10_000],
)
def test_lines_that_are_no_verdicts_are_passed_over(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "cache.jsonl"
    cache = Cache(path)
    cache.put("audio", str(tmp_path), 1, 2, Verdict("", {}))
    cache.close()
    path.write_bytes(line + b"\n" + path.read_bytes())
    cache = Cache(path)
    assert cache.get("audio", str(tmp_path), 1, 2) == Verdict("", {})
    assert cache.get("video", str(tmp_path), 1, 2) is None
    assert cache.get("audio", str(tmp_path), 1, 3) is None
    cache.close()


def test_another_version_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    cache = Cache(path)
    cache.put("audio", str(tmp_path), 1, 2, Verdict("", {}))
    cache.close()
    path.write_text(path.read_text().replace('"version":1', '"version":999'))
    cache = Cache(path)
    assert cache.get("audio", str(tmp_path), 1, 2) is None
    cache.close()


def test_a_stale_cache_is_compacted_unless_it_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "cache.jsonl"
    writer = Cache(path)
    for time_ns in range(200):
        writer.put("audio", str(tmp_path / "odd \udcff name"), 1, time_ns, Verdict("", {"silent": True}))
    reader = Cache(path)
    assert len(lines(path)) == 200
    reader.close()
    writer.close()
    compact = Cache(path)
    assert len(lines(path)) == 1
    compact.put("video", str(tmp_path), 1, 2, Verdict("no_video", {}))
    compact.close()
    assert len(lines(path)) == 2
    assert list(tmp_path.iterdir()) == [path]
    last = Cache(path)
    assert last.get("audio", str(tmp_path / "odd \udcff name"), 1, 199) == Verdict("", {"silent": True})
    last.close()


def test_a_cache_that_cannot_be_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Judge(cache=tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InvalidInput):
        Judge(cache=tmp_path / "fifo")
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentLacks):
        Judge(cache=tmp_path / "file" / "cache.jsonl")
