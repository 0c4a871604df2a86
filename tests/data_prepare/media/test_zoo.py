"""Every way of looking gives the verdict that is expected of every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnirl.data.media import Judge, Verdict
from omnirl.data.media.pool import Workers
from omnirl.data.media.programs import Programs
from tests.data_prepare.media.zoo import Expected

pytestmark = pytest.mark.ffmpeg
KINDS = ("video", "soundtrack", "audio")
Zoo = tuple[Path, Expected]
Verdicts = dict[tuple[str, str], Verdict]


def every_kind(expected: Expected) -> list[tuple[str, str]]:
    return [(name, kind) for name in expected for kind in KINDS]


def one_kind_each(expected: Expected) -> list[tuple[str, str]]:
    """The kind that asks most of each file, and all kinds of a few: programs take their time."""
    few = (
        "clip.mp4",
        "clip.mkv",
        "cut.mp4",
        "cut_clip.avi",
        "noise.mp4",
        "mute.mp4",
        "tone.m4a",
        "text.mp4",
        "hls.mp4",
    )
    most = [(name, "audio" if reasons["video"] == "no_video" else "soundtrack") for name, reasons in expected.items()]
    return [*most, *((name, kind) for name in few for kind in KINDS if (name, kind) not in most)]


def ask(zoo: Zoo, judge: Judge, questions: list[tuple[str, str]]) -> Verdicts:
    asked = {(name, kind): judge.ask(kind, zoo[0] / name) for name, kind in questions}
    return {question: future.result(timeout=100) for question, future in asked.items()}


def check(zoo: Zoo, verdicts: Verdicts) -> None:
    wanted = {(name, kind): zoo[1][name][kind] for name, kind in verdicts}
    assert {question: verdict.reason for question, verdict in verdicts.items()} == wanted
    assert all(bool(verdict.facts) == (verdict.reason == "") for verdict in verdicts.values())


@pytest.fixture(scope="module")
def by_programs(zoo: Zoo) -> Verdicts:
    with Judge(probe="ffmpeg") as judge:
        return ask(zoo, judge, one_kind_each(zoo[1]))


def test_the_programs_alone(zoo: Zoo, by_programs: Verdicts) -> None:
    check(zoo, by_programs)


def test_pyav_with_the_programs_behind_it(zoo: Zoo) -> None:
    with Judge() as judge:
        check(zoo, ask(zoo, judge, one_kind_each(zoo[1])))


def test_pyav_alone(zoo: Zoo, without_programs: None) -> None:
    with Judge() as judge:
        check(zoo, ask(zoo, judge, every_kind(zoo[1])))


def test_facts_do_not_depend_on_the_way(zoo: Zoo, by_programs: Verdicts, without_programs: None) -> None:
    with Judge() as judge:
        by_pyav = ask(zoo, judge, one_kind_each(zoo[1]))
    for question, verdict in by_programs.items():
        ours, theirs = dict(by_pyav[question].facts), dict(verdict.facts)
        for key in ("duration_s", "audio_duration_s"):
            # Releases of FFmpeg differ about the padding of MP3.
            assert ours.pop(key, 0) == pytest.approx(theirs.pop(key, 0), abs=0.1), question
        assert ours == theirs, question


def test_what_is_plainly_usable_needs_no_program(zoo: Zoo) -> None:
    workers = Workers(30, thorough=False)
    unsure = []
    try:
        for name, reasons in zoo[1].items():
            path = zoo[0] / name
            kind = "audio" if reasons["video"] == "no_video" else "soundtrack"
            answer = workers.ask(kind, path, path.stat().st_size)
            assert answer.verdict is not None, name
            if not reasons[kind] and not answer.sure:
                unsure.append(name)
    finally:
        workers.close()
    # Nothing tells the length of a live recording but its last packet.
    assert unsure == ["live.mkv"]


def test_facts(zoo: Zoo, by_programs: Verdicts) -> None:
    facts = by_programs["clip.mp4", "soundtrack"].facts
    assert facts["size_bytes"] == (zoo[0] / "clip.mp4").stat().st_size
    assert (facts["width"], facts["height"], facts["fps"], facts["frames"], facts["rotation"]) == (160, 120, 15, 60, 0)
    assert (facts["audio_codec"], facts["video_codec"], facts["audio_streams"]) == ("aac", "h264", 1)
    assert (facts["sample_rate_hz"], facts["channels"]) == (44_100, 1)
    assert facts["duration_s"] == pytest.approx(4, abs=0.1)
    assert facts["audio_duration_s"] == pytest.approx(4, abs=0.1)
    assert by_programs["turned.mp4", "soundtrack"].facts["rotation"] == 270
    assert by_programs["two_tracks.mp4", "soundtrack"].facts["audio_streams"] == 2


def test_silence_is_told_and_not_refused(by_programs: Verdicts) -> None:
    silent = {name for (name, _), verdict in by_programs.items() if verdict.facts.get("silent")}
    assert silent == {"silent.mp4", "two_tracks.mp4", "silent.wav", "hiss.wav"}


@pytest.mark.parametrize("thorough", [False, True])
def test_nothing_but_the_file_is_opened(zoo: Zoo, thorough: bool, tmp_path: Path) -> None:
    """A list whose entry is a FIFO would block whoever opened it."""
    import os

    from omnirl.data.media.pyav import look

    trap = tmp_path / "trap.mp4"
    os.mkfifo(trap)
    names = []
    for name, text in {
        "a.mp4": f"\n#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4,\nfile:{trap}\n#EXT-X-ENDLIST\n",
        "b.mp4": f"  ffconcat version 1.0\nfile '{trap}'\n",
        # Not named as a list by its first bytes, so the list of allowed containers must hold.
        "c.mp4": f"# a comment\nffconcat version 1.0\nfile '{trap}'\n",
    }.items():
        (tmp_path / name).write_text(text)
        names.append(tmp_path / name)
    programs = Programs(5)
    for path in names:
        assert look(path, "video", thorough=thorough).format == ""
        assert programs.look(path, "video").format == ""
