"""Converting: all splits or none, the report, the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omnirl.data import store
from omnirl.data.prepare import prepare
from omnirl.data.sources import SOURCES, Options, Source, find
from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake
from tests.conftest import plain_environment

from .conftest import RECORD

GSM8K = find("gsm8k")


def listed(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_report_is_the_documented_document_and_is_stored(gsm8k_input, tmp_path):
    report = prepare(GSM8K, input=gsm8k_input([RECORD, {}, "", {}]), output=tmp_path / "out").as_dict()
    assert report["schema"] == "omnirl/data-report/1"
    train = report["splits"]["train"]
    assert (train["input"], train["kept"]) == (4, 1)
    assert train["dropped"] == {"empty_line": 1, "invalid_record": 2}
    assert train["answers"] == {"integer": 1}
    assert train["audio"] == {}
    assert train["output"] == str(tmp_path / "out" / "train.parquet")
    assert report["shared"] == {"train and test": 1}
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    assert listed(tmp_path / "out") == ["report.json", "test.parquet", "train.parquet"]


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
