"""The sync proof by itself, for real: `omnirl doctor --sync` with the engine, and with a rollout made wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUN_S = 500
MODALITIES = ("text", "image", "image+audio", "video")
STALE = "    if not complete:\n        return\n"
"""Weights are taken over once, and later ones are let lie."""


def prove(cli: Cli, data: Path, *sets: str, **env: str) -> subprocess.CompletedProcess[str]:
    files = {"train": "train", "val": "validation"}
    settings = [f'data.{key} = "{data / name}.parquet"' for key, name in files.items()]
    settings += ["data.probe = []", "batch.prompts = 8", "batch.mini_prompts = 8", *sets]
    words = [word for setting in settings for word in ("--set", setting)]
    return cli("doctor", "--sync", "toy", "--on", "cpu", *words, "--json", env=env, timeout_s=RUN_S)


def nothing_left(tmp_path: Path) -> None:
    assert list((tmp_path / "runs").iterdir()) == []


def test_rollout_and_trainer_agree(cli: Cli, toy_data: Path, tmp_path: Path) -> None:
    done = prove(cli, toy_data)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["schema"], found["task"], found["hardware"]) == ("omnirl/sync/1", "toy", "cpu")
    cells = {(one["modality"], one["weights"]): one for one in found["agreements"]}
    assert cells.keys() == {(modality, weights) for modality in MODALITIES for weights in ("sent", "changed")}
    for cell in cells.values():
        assert cell["verdict"] == "ok"
        assert cell["tokens"] >= 512  # of answers of at most eight: further questions were asked
        assert cell["pearson"] > 0.9999
        assert cell["mean_difference"] < 1e-3
    nothing_left(tmp_path)


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A copy of omnirl whose `hf` rollout keeps the first weights that it gets."""
    copy = tmp_path / "stale"
    for folder in ("omnirl", "recipes"):
        shutil.copytree(ROOT / folder, copy / folder)
    weights = copy / "omnirl" / "engine" / "rollout" / "weights.py"
    text = weights.read_text(encoding="utf-8")
    before = "    named = pack_experts(named)\n    own = "
    assert text.count(before) == 1
    weights.write_text(text.replace(before, STALE + before), encoding="utf-8")
    return copy


def test_old_weights_are_noticed(cli: Cli, toy_data: Path, tmp_path: Path, stale: Path) -> None:
    done = prove(cli, toy_data, "rollout.proof.tokens = 64", PYTHONPATH=str(stale))
    assert done.returncode == 1, done.stderr
    verdicts = {(one["modality"], one["weights"]): one["verdict"] for one in json.loads(done.stdout)["agreements"]}
    assert {verdicts[modality, "sent"] for modality in MODALITIES} == {"ok"}
    assert {verdicts[modality, "changed"] for modality in MODALITIES} == {"low"}
    assert "rollout and trainer disagree (text/changed: low, " in done.stderr
    assert "hint: only after the weights changed" in done.stderr
    nothing_left(tmp_path)
