"""From records and media files to parquet: order, reasons, media tallies, a warm cache, and being killed on the way."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from omnirl.data import store
from omnirl.data.prepare import Checks, prepare
from omnirl.data.sources import find
from omnirl.data.sources.nextqa import COLUMNS
from omnirl.errors import InvalidInput
from tests.conftest import plain_environment

from .clips import REASONS, lay_out, make_clips

NEXTQA = find("nextqa")


def table(folder: Path, flavours: dict[str, str], each: int = 3) -> Path:
    """A NExT-QA folder in which each video, named as its flavour, has `each` questions."""
    repo = folder / "NextQA" / "repo"
    repo.mkdir(parents=True)
    with (repo / "val.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for question in range(each):
            for video in flavours:
                rows.writerow([video, 8, 64, 64, f"what is it {question}", question % 5, question, "CW", *"vwxyz"])
    (repo / "map_vid_vidorID.json").write_text(json.dumps({video: f"00/{video}" for video in flavours}))
    make_clips(folder / "NextQA" / "NExTVideo", {f"00/{video}": flavour for video, flavour in flavours.items()})
    return folder


def rows(path: Path) -> list[str]:
    return [row["extra_info"]["id"] for row in store.read_rows(path)]


def test_rows_wait_for_their_media_and_keep_their_order(tmp_path):
    flavours = {flavour: flavour for flavour in REASONS}
    report = prepare(
        NEXTQA, input=table(tmp_path / "in", flavours), output=tmp_path / "out", checks=Checks(max_drop=0.9)
    )
    split = report.splits["validation"]
    assert (split.input, split.kept) == (3 * len(REASONS), 6)
    assert rows(tmp_path / "out" / "validation.parquet") == [
        f"{video}_{question}" for question in range(3) for video in ("good", "silent")
    ]
    expected: dict[str, int] = {}
    for reason in filter(None, REASONS.values()):
        expected[reason] = expected.get(reason, 0) + 3
    assert split.dropped == expected
    assert split.first_drop["no_audio"].endswith("00/mute.mp4)")
    audio = split.audio
    assert (audio["unique"], audio["usable"], audio["silent"]) == (len(REASONS), 2, 1)
    assert audio["unusable"] == {reason: count // 3 for reason, count in expected.items()}
    assert audio["seconds"] == pytest.approx(2.0, abs=0.2)
    assert split.media == {"soundtrack": audio}
    assert report.probed == len(REASONS) - 2  # neither the missing file nor the empty one is opened


def test_a_warm_cache_probes_nothing_and_a_changed_file_is_looked_at_again(tmp_path):
    folder = table(tmp_path / "in", {"a": "good", "b": "good", "c": "mute"})
    first = prepare(NEXTQA, input=folder, output=tmp_path / "out")
    assert (first.probed, first.splits["validation"].kept) == (3, 6)
    again = prepare(NEXTQA, input=folder, output=tmp_path / "out", force=True)
    assert (again.probed, again.unchanged) == (0, False)
    assert again.lasting() == first.lasting()
    clip = folder / "NextQA" / "NExTVideo" / "00" / "b.mp4"
    clip.unlink()
    clip.write_bytes(b"no clip any more")
    changed = prepare(NEXTQA, input=folder, output=tmp_path / "out", checks=Checks(max_drop=0.7))
    assert (changed.probed, changed.splits["validation"].kept) == (1, 3)
    assert changed.splits["validation"].dropped == {"no_audio": 3, "undecodable_video": 3}


def test_a_file_that_was_missing_and_is_there_now_is_used(tmp_path):
    folder = table(tmp_path / "in", {"a": "good", "b": "missing"})
    assert prepare(NEXTQA, input=folder, output=tmp_path / "out").splits["validation"].kept == 3
    assert prepare(NEXTQA, input=folder, output=tmp_path / "out").unchanged
    make_clips(folder / "NextQA" / "NExTVideo", {"00/b": "good"})
    assert prepare(NEXTQA, input=folder, output=tmp_path / "out").splits["validation"].kept == 6


def test_trusted_media_only_have_to_be_there(tmp_path):
    folder = table(tmp_path / "in", {"a": "good", "b": "garbage", "c": "missing"})
    report = prepare(NEXTQA, input=folder, output=tmp_path / "out", checks=Checks(verify_media=False))
    assert report.splits["validation"].dropped == {"missing_video": 3}
    assert report.probed == 0
    verified = prepare(NEXTQA, input=folder, output=tmp_path / "out", checks=Checks(max_drop=0.7))
    assert (verified.unchanged, verified.splits["validation"].kept) == (False, 3)


def test_media_count_in_what_a_split_may_lose(tmp_path):
    folder = table(tmp_path / "in", {"a": "good", "b": "mute", "c": "mute"})
    with pytest.raises(InvalidInput, match=r"loses 6 of its 9 records \(no_audio 6\)"):
        prepare(NEXTQA, input=folder, output=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".media-verdicts.jsonl"]


def test_links_to_media_elsewhere_are_followed_on_request(cli, tmp_path):
    folder = table(tmp_path / "in", {"a": "good", "b": "good"})
    clip = folder / "NextQA" / "NExTVideo" / "00" / "b.mp4"
    clip.rename(tmp_path / "elsewhere.mp4")
    clip.symlink_to(tmp_path / "elsewhere.mp4")
    words = ("data", "prepare", "nextqa", "--input", "in", "--output", "out", "--json")
    refused = json.loads(cli(*words).stdout)["splits"]["validation"]
    assert (refused["kept"], refused["dropped"]) == (3, {"outside_folder": 3})
    assert json.loads(cli(*words, "--allow-outside").stdout)["splits"]["validation"]["kept"] == 6


def test_how_videos_are_sampled_can_be_changed(cli, tmp_path):
    table(tmp_path / "in", {"a": "good"})
    words = ("data", "prepare", "nextqa", "--input", "in", "--output", "out")
    assert (
        cli(*words, "--fps", "2", "--max-frames", "8", "--min-pixels", "1024", "--max-pixels", "4096").returncode == 0
    )
    (video,) = next(iter(store.read_rows(tmp_path / "out" / "validation.parquet")))["videos"]
    assert {name: video[name] for name in ("fps", "min_pixels", "max_pixels", "max_frames")} == {
        "fps": 2.0,
        "min_pixels": 1024,
        "max_pixels": 4096,
        "max_frames": 8,
    }
    wrong = cli(*words, "--min-pixels", "4096", "--max-pixels", "1024")
    assert (wrong.returncode, "--max-pixels 1024 is below --min-pixels 4096" in wrong.stderr) == (2, True)


def test_the_tables_name_reasons_answers_and_media(cli, tmp_path):
    table(tmp_path / "in", {"a": "good", "b": "mute"})
    shown = cli("data", "prepare", "nextqa", "--input", "in", "--output", "out")
    assert shown.returncode == 0
    for words in ("no_audio", "A 1, B 1, C 1", "soundtrack", "no_audio 1"):
        assert words in shown.stdout
    assert "nothing has changed" in cli("data", "prepare", "nextqa", "--input", "in", "--output", "out").stderr


def test_a_conversion_with_media_that_is_killed_can_be_done_again(tmp_path):
    flavours = {f"{number:03}": ("good", "good", "mute", "cut")[number % 4] for number in range(120)}
    table(tmp_path / "in", flavours)
    start = [sys.executable, "-m", "omnirl", "data", "prepare", "nextqa", "--input", str(tmp_path / "in"), "--output"]
    began = time.monotonic()
    calm = subprocess.run([*start, str(tmp_path / "calm")], env=plain_environment(), capture_output=True, text=True)
    assert calm.returncode == 0, calm.stderr
    took_s = time.monotonic() - began
    random = Random(1)
    killed = 0
    for _ in range(5):
        child = subprocess.Popen([*start, str(tmp_path / "out")], env=plain_environment(), stdout=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(random.uniform(0.2, 0.8) * took_s)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
    subprocess.run([*start, str(tmp_path / "out")], env=plain_environment(), capture_output=True, check=True)
    assert killed
    names = sorted(path.name for path in (tmp_path / "calm").iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in ("validation.parquet", "media.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


@pytest.mark.timeout(300)
def test_the_real_validation_table(shared, tmp_path):
    nextqa = shared / "data" / "nextqa"
    expected = lay_out(tmp_path / "in", nextqa / "val.csv", nextqa / "map_vid_vidorID.json")
    report = prepare(NEXTQA, input=tmp_path / "in", output=tmp_path / "out")
    split = report.splits["validation"]
    assert split.input == 4996
    assert split.kept == expected.pop("")
    assert split.dropped == expected
    assert split.audio["unique"] == 570
