"""Every shipped recipe: resolves, keeps the rules, renders, and to exactly the values that are documented."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from omnirl.plan import hydra_words, plan
from omnirl.recipe import registry, rules, verl_keys
from omnirl.recipe.search import names, shipped

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "data" / "overrides"
PAIRS = [(pair.task, pair.hardware) for pair in registry.pairs([shipped()])]
FILES = sorted(shipped().rglob("*.toml"))
DOCUMENTED = [
    ("gsm8k", "h800x4", None, "gspo/gsm8k/gpu"),
    ("mmk12", "h800x4", None, "gspo/mmk12/gpu"),
    ("mmk12", "ascend910c-x16", None, "gspo/mmk12/npu"),
    ("avqa", "h800x4", None, "gspo/avqa/gpu"),
    ("avqa", "ascend910c-x16", None, "gspo/avqa/npu"),
    ("nextqa", "ascend910c-x16", None, "gspo/nextqa/npu"),
    ("mmk12", "ascend910c-x16x2", None, "opd/mmk12/npu"),
    ("avqa", "h800x4", "dapo", "dapo/avqa/gpu"),
    ("omni-preference", "h800x4", None, "dpo/omni-preference/gpu"),
]
ONLINE_TASKS = ("gsm8k", "mmk12", "avqa", "nextqa")


@pytest.fixture(autouse=True)
def _only_shipped(monkeypatch):
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    monkeypatch.chdir(ROOT)


def test_the_pairs():
    assert {("toy", "cpu"), *((task, hardware) for task, hardware, *_ in DOCUMENTED)} <= set(PAIRS)
    assert {(task, hardware) for task in ONLINE_TASKS for hardware in ("cpu", "h200x1", "h200x2")} <= set(PAIRS)
    assert ("omni-preference", "cpu") in PAIRS


@pytest.mark.parametrize("algo", [None, *names([shipped()], "algo")])
@pytest.mark.parametrize("tune", [None, *names([shipped()], "tune")])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_pair_with_every_fragment(pair, algo, tune):
    """Each combination is right, or refused for the one thing that it lacks: the rows, or machines for a teacher."""
    resolved = registry.resolve(*pair, algo=algo, tune=tune)
    recipe = resolved.recipe
    assert algo in (None, recipe.algo.kind)
    assert tune in (None, recipe.tune.kind)
    found = {problem.code for problem in rules.check(resolved)}
    if (recipe.algo.kind == "dpo") != (recipe.task.rows == "preferences"):
        assert "rows-for-algo" in found
    elif recipe.algo.kind == "opd" and recipe.hardware.nodes == 1 and recipe.algo.teacher.devices is None:
        assert "teacher-needs-nodes" in found
    else:
        assert found == set()
        # What trains every parameter may be too much for hardware that was chosen for adapters.
        assert {problem["code"] for problem in plan(resolved)["problems"]} <= (
            {"does-not-fit"} if tune == "full" else set()
        )


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_what_verl_is_told_is_what_was_reviewed(pair):
    """Golden text: a change of a recipe shows as a readable diff. `OMNIRL_UPDATE=1 pytest` writes it anew."""
    document = plan(registry.resolve(*pair))
    told = {**document["settings"], **{f"env {name}": value for name, value in document["env"].items()}}
    words = [*hydra_words(document["overrides"]), "", *(f"{name} = {value!r}" for name, value in told.items())]
    text = "\n".join(words).replace(str(ROOT), "HERE") + "\n"
    path = GOLDEN / f"{'-'.join(pair)}.txt"
    if os.environ.get("OMNIRL_UPDATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def facts(shared):
    return tomllib.loads((shared / "facts" / "recipes.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("task", "hardware", "algo", "name"), DOCUMENTED, ids=str)
def test_documented_settings_are_reproduced(facts, task, hardware, algo, name):
    document = plan(registry.resolve(task, hardware, algo=algo))
    assert document["problems"] == []
    wanted = _with_includes(facts, name)
    values = {key: value for key, value in wanted.items() if "." in key}
    assert len(values) > 25
    found = {}
    for key in values:
        # A key of verl is an override; what verl lacks is a setting by the same name.
        home, other = document["overrides"], document["settings"]
        if key not in verl_keys.types() and not verl_keys.is_open(key):
            home, other = other, home
        found[key] = home.get(key, "absent")
        assert key not in other, key
    assert found == values
    assert {name: type(value) for name, value in document["env"].items()} == dict.fromkeys(document["env"], str)
    assert wanted.get("env", {}).items() <= document["env"].items()


def test_every_documented_recipe_is_compared(facts):
    assert {name for name in facts if "/" in name} == {name for *_, name in DOCUMENTED}


def test_documented_media_and_weights_of_preferences(facts):
    settings = plan(registry.resolve("omni-preference", "h800x4"))["settings"]
    media = facts["dpo/omni-preference/gpu"]["media"]
    assert {name: settings[f"media.{name}"] for name in media} == media
    assert {settings[f"data.modality_weights.{modality}"] for modality in ("image", "video", "audio")} == {1.0}
    assert settings["data.one_modality_a_batch"] is True


def test_the_two_variants_of_dapo_are_switches():
    plain = plan(registry.resolve("avqa", "h800x4", algo="dapo"))["overrides"]
    sampling = plan(registry.resolve("avqa", "h800x4", algo="dapo", sets=["algo.filter_groups = true"]))["overrides"]
    assert {key: value for key, value in sampling.items() if plain.get(key) != value} == {
        "algorithm.filter_groups.enable": True,
        "reward.reward_manager.name": "dapo",
    }
    assert sampling["algorithm.filter_groups.metric"] == "acc"
    buffer = plan(registry.resolve("avqa", "h800x4", algo="dapo", sets=["algo.overlong_buffer = true"]))["overrides"]
    assert {key: value for key, value in buffer.items() if plain.get(key) != value} == {
        "reward.reward_manager.name": "dapo",
        "reward.reward_kwargs.max_resp_len": 12288,
        "reward.reward_kwargs.overlong_buffer_cfg.enable": True,
        "reward.reward_kwargs.overlong_buffer_cfg.len": 4096,
        "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": 1.0,
        "reward.reward_kwargs.overlong_buffer_cfg.log": False,
    }


def test_offline_training_is_told_of_no_rollout():
    for hardware in ("cpu", "h800x4"):
        overrides = plan(registry.resolve("omni-preference", hardware))["overrides"]
        assert [key for key in overrides if ".rollout." in key or key.startswith("reward.")] == []


@pytest.mark.parametrize("pair", [("omni-preference", "cpu"), ("mmk12", "h200x1")], ids="-".join)
def test_what_no_engine_runs_is_refused_as_planned(cli, pair):
    task, hardware = pair
    done = cli("train", task, "--on", hardware)
    assert done.returncode == 4
    assert "is planned" in done.stderr or "needs `vllm` and `vllm_omni`" in done.stderr
    assert "Traceback" not in done.stderr
    dry = cli("train", task, "--on", hardware, "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    assert json.loads(dry.stdout)["evidence"] == "planned"


def test_a_teacher_has_machines_of_its_own():
    document = plan(registry.resolve("mmk12", "ascend910c-x16x2"))
    assert document["overrides"]["trainer.nnodes"] == 1
    assert document["batch"]["devices"] == 16


def test_a_teacher_on_a_cpu_has_a_slot_of_its_own():
    document = plan(registry.resolve("toy", "cpu", algo="opd"))
    told = document["overrides"]
    assert (told["trainer.nnodes"], told["trainer.n_gpus_per_node"]) == (1, 1)
    assert (told["distillation.nnodes"], told["distillation.n_gpus_per_node"]) == (1, 1)
    assert told["distillation.teacher_models.teacher_model.inference.name"] == "hf"
    assert told["distillation.distillation_loss.use_task_rewards"] is False
    assert document["batch"]["devices"] == 1
    assert document["problems"] == []


def test_data_stand_where_they_are_prepared():
    for task, hardware in PAIRS:
        data = registry.resolve(task, hardware).recipe.data
        assert all(Path(name).is_relative_to(Path("data", task)) for name in (*data.train, *data.val)), task
        assert data.source == task


def _with_includes(facts, name):
    table = facts
    for part in [name] if name in facts else name.split("."):
        table = table[part]
    found = {}
    for included in table.get("includes", []):
        found |= _with_includes(facts, included)
    return found | {key: value for key, value in table.items() if key != "includes"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(shipped())))
def test_files_are_plain(path):
    """One value a line: `file:line` stays exact and diffs stay small."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("#:schema ")
    assert (path.parent / first.removeprefix("#:schema ")).resolve() == (shipped() / "recipe.schema.json").resolve()
    for line in lines:
        assert not re.search(r"=\s*\{", line), line
        assert '"""' not in line
        assert "'''" not in line


def test_no_value_is_written_twice_in_fragments():
    """A value that two fragments share belongs in a third that both extend."""
    seen = {}
    for path in FILES:
        if path.parent == shipped():
            continue
        for key, value in _leaves(tomllib.loads(path.read_text(encoding="utf-8"))):
            if isinstance(value, str | list) and key[0] not in ("extends", "hardware") and key[-1] != "kind":
                assert (key, str(value)) not in seen, (path, seen.get((key, str(value))))
                seen[key, str(value)] = path


def _leaves(values, prefix=()):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_evidence_is_not_claimed_without_proof(pair):
    recipe = registry.resolve(*pair).recipe
    assert recipe.evidence == "planned" or recipe.proof
    assert recipe.hardware.device == "cpu" or recipe.evidence == "planned"
