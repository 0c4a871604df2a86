"""`omnirl plan` on the command line: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from omnirl.errors import Exit
from tests.conftest import Cli, plain_environment

SHORT = ("--set", "train.steps = 300", "--set", "train.keep_checkpoints = 2")
STARVED = ("--set", "rollout.memory_fraction = 0.38")


def test_a_plan_in_words(cli: Cli):
    done = cli("plan", "gsm8k", "--on", "h800x4")
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    for part in (
        "gsm8k on h800x4: gspo, lora",
        "train and generate",
        "0-1 2-3",
        "128 prompts x 16",
        "environment: WANDB_MODE=offline",
        "no data yet: data/gsm8k/train.parquet",
        "checkpoint: ",
        "kv_cache",
        "of 80 GiB",
        "host memory",
    ):
        assert part in done.stdout
    bars = [line for line in done.stdout.splitlines() if "[" in line and line.endswith("GiB")]
    assert [bar.split("[")[0].strip() for bar in bars] == ["training", "generating"]
    assert {len(bar[bar.index("[") + 1 : bar.index("]")]) for bar in bars} == {60}


def test_the_document(cli: Cli):
    done = cli("plan", "avqa", "--on", "ascend910c-x16", "--json", *SHORT)
    document = json.loads(done.stdout)
    assert (done.returncode, done.stderr, document["schema"]) == (Exit.OK, "", "omnirl/plan/1")
    assert document["overrides"]["actor_rollout_ref.rollout.n"] == 16
    assert document["env"]["VLLM_ASCEND_ENABLE_NZ"] == "0"
    memory = document["memory"]
    assert memory["fits"] is True
    assert document["schedule"]["checkpoints"] == 6
    assert 0 < memory["actor_peak_gib"] < memory["limit_gib"]
    assert all(isinstance(size, float) for size in memory["components"].values())
    assert document["schedule"]["updates"] == 300 * document["batch"]["updates_per_step"]
    assert document["disk"]["checkpoints"] == 2


def test_scripts_for_npus_come_before(cli: Cli):
    done = cli("plan", "mmk12", "--on", "ascend910c-x16x2")
    assert done.returncode == Exit.OK
    assert done.stdout.index("source /usr/local/Ascend") < done.stdout.index("VLLM_ASCEND_ENABLE_NZ=0")
    assert "teach" in done.stdout


def test_what_does_not_fit_ends_with_one_and_a_mend_that_can_be_pasted(cli: Cli):
    done = cli("plan", "gsm8k", "--on", "h800x4", *STARVED)
    assert done.returncode == Exit.NO
    assert "`gsm8k` does not fit on `h800x4`: the rollout lacks" in done.stderr
    hint = done.stderr.partition("hint: try ")[2].strip()
    word = hint.split(" or ")[0].partition("--set ")[2].strip("'")
    again = cli("plan", "gsm8k", "--on", "h800x4", *STARVED, "--set", word)
    assert (again.returncode, again.stderr) == (Exit.OK, "")


def test_the_document_comes_even_when_it_does_not_fit(cli: Cli):
    done = cli("plan", "gsm8k", "--on", "h800x4", "--json", *STARVED)
    assert done.returncode == Exit.NO
    document = json.loads(done.stdout)
    assert document["memory"]["fits"] is False
    assert [problem["code"] for problem in document["problems"]] == ["does-not-fit"]


def test_broken_rules_are_shown_and_end_with_three(cli: Cli):
    done = cli("plan", "gsm8k", "--on", "h800x4", "--set", "batch.group_size = 1", "--set", "batch.mini_prompts = 7")
    assert done.returncode == Exit.INVALID
    for code in ("group-of-one", "mini-batch-does-not-divide"):
        assert code in done.stdout
        assert code in done.stderr


def test_options_are_those_of_a_dry_run(cli: Cli):
    words = ("--algo", "dapo", "--tune", "full", "--json", "--", "trainer.save_freq=7")
    document = json.loads(cli("plan", "gsm8k", "--on", "h800x4", *words).stdout)
    assert (document["algo"], document["tune"]) == ("dapo", "full")
    assert document["overrides"]["trainer.save_freq"] == 7
    assert cli("plan", "gsm8k", "--on", "h800x4", "--", "nonsense").returncode == Exit.USAGE


def test_rows_are_counted_where_the_data_are(cli: Cli, toy_data: Path):
    files = [f'data.{key} = "{toy_data}/{name}.parquet"' for key, name in (("train", "train"), ("val", "validation"))]
    sets = [word for text in (*files, "batch.prompts = 8") for word in ("--set", text)]
    document = json.loads(cli("plan", "toy", "--on", "cpu", "--json", *sets).stdout)
    assert (document["schedule"]["rows"], document["schedule"]["steps_per_epoch"]) == (32, 4)
    assert "32 rows / 8" in cli("plan", "toy", "--on", "cpu", *sets).stdout


def test_data_that_cannot_be_read_do_not_stop_a_plan(cli: Cli, tmp_path: Path):
    (tmp_path / "odd.parquet").write_text("no parquet")
    done = cli("plan", "toy", "--on", "cpu", "--set", 'data.train = "odd.parquet"')
    assert done.returncode == Exit.OK
    assert "not a readable parquet file" in done.stdout


@pytest.mark.parametrize("words", [("gsm8k", "--on", "h800x4"), ("nextqa", "--on", "ascend910c-x16", "--json")])
def test_nothing_heavy_is_imported(words, tmp_path: Path):
    code = (
        "import sys; from omnirl.cli import app\n"
        "try: app(['plan', *sys.argv[1:]])\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'torch', 'verl', 'transformers', 'pyarrow', 'numpy', 'ray', 'omegaconf', 'rich.console'}\n"
        "print(sorted(heavy & set(sys.modules)), code or 0, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=plain_environment(), capture_output=True, text=True
    )
    assert done.stderr.splitlines()[-1] == "[] 0"
