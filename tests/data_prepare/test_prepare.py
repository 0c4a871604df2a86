"""Converting: all splits or none, the report, the command."""

from __future__ import annotations

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
from omnirl.data.sources import SOURCES, Options, Source, find
from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake
from tests.conftest import plain_environment

from .conftest import RECORD

GSM8K = find("gsm8k")
OUTPUTS = ["manifest.json", "media.jsonl", "report.json", "test.parquet", "train.parquet"]


def listed(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_report_is_the_documented_document_and_is_stored(gsm8k_input, tmp_path):
    report = prepare(
        GSM8K, input=gsm8k_input([RECORD, {}, "", {}]), output=tmp_path / "out", checks=Checks(max_drop=0.8)
    ).as_dict()
    assert report["schema"] == "omnirl/data-report/1"
    train = report["splits"]["train"]
    assert (train["input"], train["kept"]) == (4, 1)
    assert train["dropped"] == {"empty_line": 1, "invalid_record": 2}
    assert train["answers"] == {"integer": 1}
    assert train["audio"] == {}
    assert train["output"] == str(tmp_path / "out" / "train.parquet")
    assert report["shared"] == {"train and test": 1}
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report == stored | {"dry_run": False, "unchanged": False, "probed": 0}
    assert listed(tmp_path / "out") == OUTPUTS


def test_a_bad_second_split_leaves_no_first_one(gsm8k_input, tmp_path):
    with pytest.raises(InvalidInput, match="split `test` keeps none") as caught:
        prepare(GSM8K, input=gsm8k_input(test=[{}]), output=tmp_path / "deep" / "out")
    assert "test.jsonl:1" in caught.value.hint
    assert not (tmp_path / "deep").exists()


def test_a_package_that_a_source_needs_and_lacks_is_named(tmp_path):
    source = Source("made", "made up", "omnirl.data.sources.toy", packages=("numpy", "no_such_package"))
    with pytest.raises(EnvironmentLacks, match="needs `no_such_package`") as caught:
        prepare(source, input=None, output=tmp_path / "deep" / "out")
    assert caught.value.hint == "pip install 'omnirl[train]'"
    assert not (tmp_path / "deep").exists()


def test_a_failed_conversion_leaves_the_older_one(gsm8k_input, tmp_path):
    prepare(GSM8K, input=gsm8k_input(), output=tmp_path / "out")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in listed(tmp_path / "out")}
    with pytest.raises(InvalidInput):
        prepare(GSM8K, input=gsm8k_input(test=["{"]), output=tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in listed(tmp_path / "out")} == before


def test_a_dry_run_reports_the_same_and_writes_nothing(gsm8k_input, tmp_path):
    folder = gsm8k_input()
    dry = prepare(GSM8K, input=folder, output=tmp_path / "out", dry_run=True).as_dict()
    assert not (tmp_path / "out").exists()
    real = prepare(GSM8K, input=folder, output=tmp_path / "out").as_dict()
    assert dry == real | {"dry_run": True}


def test_the_same_conversion_is_not_done_twice(gsm8k_input, tmp_path):
    folder = gsm8k_input([RECORD, {}])
    first = prepare(GSM8K, input=folder, output=tmp_path / "out")
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    again = prepare(GSM8K, input=folder, output=tmp_path / "out")
    assert again.unchanged
    assert again.as_dict() == first.as_dict() | {"unchanged": True}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == written
    forced = prepare(GSM8K, input=folder, output=tmp_path / "out", force=True)
    assert not forced.unchanged
    assert (tmp_path / "out" / "train.parquet").stat().st_mtime_ns != written[tmp_path / "out" / "train.parquet"]
    with pytest.raises(InvalidInput, match="more than the 25% that `--max-drop` allows"):
        prepare(GSM8K, input=folder, output=tmp_path / "out", checks=Checks(max_drop=0.25))


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + json.dumps(RECORD).encode() + b"\n")


@pytest.mark.parametrize(
    "disturb",
    [
        lambda original, out: _grow(original / "train.jsonl"),
        lambda original, out: os.utime(original / "test.jsonl", ns=(1, 1)),
        lambda original, out: (out / "train.parquet").write_bytes(b"PAR1"),
        lambda original, out: (out / "test.parquet").unlink(),
        lambda original, out: (out / "report.json").unlink(),
        lambda original, out: (out / "report.json").write_text("{}"),
        lambda original, out: (out / "manifest.json").write_text('{"schema": "omnirl/manifest/1"}'),
        lambda original, out: (out / "media.jsonl").write_text("{"),
    ],
)
def test_a_conversion_is_done_again_when_anything_differs(disturb, gsm8k_input, tmp_path):
    folder = gsm8k_input()
    prepare(GSM8K, input=folder, output=tmp_path / "out")
    disturb(folder, tmp_path / "out")
    assert not prepare(GSM8K, input=folder, output=tmp_path / "out").unchanged
    assert listed(tmp_path / "out") == OUTPUTS
    assert prepare(GSM8K, input=folder, output=tmp_path / "out").unchanged


def test_other_options_are_another_conversion(gsm8k_input, tmp_path):
    folder = gsm8k_input()
    prepare(GSM8K, input=folder, output=tmp_path / "out")
    assert not prepare(GSM8K, input=folder, output=tmp_path / "out", options=Options(seed=3)).unchanged


def test_a_split_that_loses_too_much_is_refused(gsm8k_input, tmp_path):
    folder = gsm8k_input([RECORD, {}, {}])
    with pytest.raises(InvalidInput, match=r"`train` loses 2 of its 3 records \(invalid_record 2\)") as caught:
        prepare(GSM8K, input=folder, output=tmp_path / "out")
    assert "train.jsonl:2" in caught.value.hint
    assert "--max-drop 0.68" in caught.value.hint
    assert not (tmp_path / "out").exists()
    assert prepare(GSM8K, input=folder, output=tmp_path / "out", checks=Checks(max_drop=0.7)).splits["train"].kept == 1


def test_progress_adds_up(gsm8k_input, tmp_path):
    steps: list[int] = []
    prepare(GSM8K, input=gsm8k_input([RECORD] * 130), output=tmp_path / "out", advance=steps.append)
    assert sum(steps) == 131


def test_wrong_folders_are_named(gsm8k_input, tmp_path):
    with pytest.raises(UsageMistake, match="no input folder is given"):
        prepare(GSM8K, input=None, output=tmp_path / "out")
    with pytest.raises(InvalidInput, match="does not exist"):
        prepare(GSM8K, input=tmp_path / "nowhere", output=tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="is a file, not a folder"):
        prepare(GSM8K, input=tmp_path / "file", output=tmp_path / "out")
    for output in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidInput, match="is a file, not a folder"):
            prepare(GSM8K, input=gsm8k_input(), output=output)


def test_a_relative_output_gives_absolute_paths(gsm8k_input, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = prepare(GSM8K, input=gsm8k_input(), output=Path("out"))
    assert report.splits["train"].output == tmp_path / "out" / "train.parquet"


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_can_be_loaded(name):
    assert callable(SOURCES[name].load())


def test_toy_goes_the_same_way(tmp_path):
    report = prepare(
        find("toy"), input=None, output=tmp_path, options=Options(seed=1, rows={"train": 8, "validation": 8})
    )
    assert set(report.splits) == {"train", "validation", "probe"}
    assert report.splits["train"].kept == 8
    assert sum(report.splits["train"].answers.values()) == 8
    assert store.inspect(tmp_path / "probe.parquet").rows == report.splits["probe"].kept


def test_the_command_converts_and_prints_one_document(cli, gsm8k_input, tmp_path):
    done = cli("data", "prepare", "gsm8k", "--input", str(gsm8k_input()), "--output", "out", "--json")
    assert (done.returncode, done.stderr) == (0, "warning: 1 prompts are in both train and test\n")
    document = json.loads(done.stdout)
    assert document["splits"]["test"]["kept"] == 1
    assert Path(document["splits"]["test"]["output"]) == tmp_path / "out" / "test.parquet"
    told = cli("data", "prepare", "gsm8k", "--input", "original", "--output", "out2", "--dry-run")
    assert "dry run" in told.stderr
    assert "train" in told.stdout
    assert not (tmp_path / "out2").exists()


def test_the_command_names_mistakes(cli, tmp_path):
    wrong = cli("data", "prepare", "gsm8", "--output", "out")
    assert (wrong.returncode, "did you mean `gsm8k`?" in wrong.stderr) == (2, True)
    lacking = cli("data", "prepare", "gsm8k", "--output", "out")
    assert lacking.returncode == 2
    assert "no input folder is given" in lacking.stderr
    assert "--input DIR" in lacking.stderr
    absent = cli("data", "prepare", "gsm8k", "--input", "nowhere", "--output", "out")
    assert absent.returncode == 3
    assert not any("Traceback" in done.stderr for done in (wrong, lacking, absent))
    assert listed(tmp_path) == []


def test_the_command_lists_the_sources(cli):
    assert [entry["name"] for entry in json.loads(cli("data", "list", "--json").stdout)["sources"]] == list(SOURCES)
    assert "gsm8k" in cli("data", "list").stdout


def test_a_conversion_that_is_killed_can_be_done_again(tmp_path):
    """Killed at five moments, then left alone: the files are those of an undisturbed conversion, byte for byte."""
    folder = tmp_path / "original"
    folder.mkdir()
    lines = [json.dumps(RECORD | {"question": f"What is {at} + 3?"}) + "\n" for at in range(20_000)]
    (folder / "train.jsonl").write_text("".join(lines))
    (folder / "test.jsonl").write_text("".join(lines[:5000]))
    words = ["data", "prepare", "gsm8k", "--input", str(folder), "--output"]
    start = [sys.executable, "-m", "omnirl", *words]
    began = time.monotonic()
    subprocess.run([*start, str(tmp_path / "calm")], env=plain_environment(), capture_output=True, check=True)
    took_s = time.monotonic() - began
    random = Random(0)
    killed = 0
    for _ in range(5):
        child = subprocess.Popen([*start, str(tmp_path / "out")], env=plain_environment(), stdout=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(random.uniform(0.3, 0.95) * took_s)
        child.kill()
        killed += child.wait() == -signal.SIGKILL
    subprocess.run([*start, str(tmp_path / "out")], env=plain_environment(), capture_output=True, check=True)
    assert killed
    assert listed(tmp_path / "out") == OUTPUTS
    for name in ("train.parquet", "test.parquet", "media.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_conversion_leaves_nothing(number, code, tmp_path):
    folder = tmp_path / "original"
    folder.mkdir()
    line = json.dumps(RECORD) + "\n"
    (folder / "train.jsonl").write_text(line * 300_000)
    (folder / "test.jsonl").write_text(line)
    words = ["data", "prepare", "gsm8k", "--input", str(folder), "--output", str(tmp_path / "out")]
    child = subprocess.Popen([sys.executable, "-m", "omnirl", *words], env=plain_environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("out/.train*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(number)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == code
    assert b"Traceback" not in errors
    assert listed(tmp_path) == ["original"]
