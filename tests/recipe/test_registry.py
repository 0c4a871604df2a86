from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from omnirl.errors import Exit, InvalidInput
from omnirl.recipe import registry
from omnirl.recipe.search import shipped

from .conftest import TASK


def problems_of(*args, **kwargs):
    with pytest.raises(InvalidInput) as caught:
        registry.resolve(*args, **kwargs)
    assert caught.value.exit is Exit.INVALID
    return caught.value.problems


def test_ten_mistakes_are_told_together_each_at_its_line(write):
    text = TASK.replace('summary = "a test"', "summary = 7")  # 1: wrong type
    text = text.replace("max_prompt_tokens = 64", 'max_prompt_tokens = "64"')  # 2: text for a number
    text = text.replace('scorer = "choice"', 'scorer = "choise"')  # 3: no such scorer
    text = text.replace("prompts = 16\n", "promts = 15\n")  # 4: unknown key, 5: and what it means does not divide
    text = text.replace("group_size = 4", "group_size = 1")  # 6: a rule
    text = text.replace("save_every = 10", "save_every = 0")  # 7: out of range
    text += (
        "[on.cpu.verl]\n"
        '"trainer.savefreq" = 1\n'  # 8: verl has no such key
        "[on.cpu.rollout]\n"
        'engine = "vlm"\n'  # 9: not a choice
        "[on.cpu.optm]\n"  # 10: unknown table
        "learning_rate = 1.0\n"
    )
    write("mine.toml", text)
    lines = {line: number for number, line in enumerate(text.splitlines(), 1)}
    found = {(problem.where, problem.key): problem for problem in problems_of("mine", "cpu")}
    expected = [
        ("summary = 7", "task.summary", "must be text"),
        ('max_prompt_tokens = "64"', "data.max_prompt_tokens", 'must be a whole number, not the text `"64"`'),
        ('scorer = "choise"', "reward.scorer", "must be one of `choice`, `gsm8k`, `mmk12` or `FILE.py:function`"),
        ("promts = 15", "batch.promts", "there is no setting `batch.promts`"),
        ("mini_prompts = 8", "batch.mini_prompts", "15 prompts a step / 8 an update leaves 7 over"),
        ("group_size = 1", "batch.group_size", "at least 2"),
        ("save_every = 0", "train.save_every", "must be -1 (never) or at least 1"),
        ('"trainer.savefreq" = 1', "verl.trainer.savefreq", "has no key `trainer.savefreq`"),
        ('engine = "vlm"', "rollout.engine", "must be `vllm_omni`, `vllm`, `hf` or `none`"),
        ("[on.cpu.optm]", "optm", "there is no setting `optm`"),
    ]
    # An unknown table is placed at its first setting.
    lines["[on.cpu.optm]"] += 1
    for line, key, message in expected:
        assert message in found.pop((f"mine/mine.toml:{lines[line]}", key)).message
    assert found == {}


def test_problems_come_in_the_order_of_the_file(task):
    task("[on.cpu.train]\nsteps = 0\nepochs = 0\n[on.cpu.batch]\nprompts = true\n")
    where = [problem.where for problem in problems_of("mine", "cpu")]
    assert where == sorted(where, key=lambda place: int(place.rpartition(":")[2]))


def test_no_problem_speaks_pydantic(task):
    task(
        "[on.cpu.optim]\nlearning_rate = -1.0\nbetas = [0.9]\nweight_decay = inf\n"
        "[on.cpu.batch]\nprompts = 1.5\n[on.cpu.algo]\nkind = 'grpo'\n"
        "[on.cpu.data]\nprobe = [1]\nshuffle = 'yes'\nprocessor = 3\ntrain = ''\n[on.cpu.rollout]\nvalidation = 3\n"
    )
    for problem in problems_of("mine", "cpu"):
        text = f"{problem.message} {problem.hint}"
        assert not any(word in text.lower() for word in ("pydantic", "input should", "discriminator", "http", "type="))


def test_an_unknown_kind_does_not_hide_the_rest_of_its_table(task):
    path = task('[on.cpu.algo]\nkind = "gspoo"\nclip_lo = 1\n')
    found = {problem.key: problem for problem in problems_of("mine", "cpu")}
    assert found.keys() == {"algo", "algo.clip_lo"}
    assert "must be `gspo` or `dapo` or `opd` or `dpo`, not `gspoo`" in found["algo"].message
    line = path.read_text().splitlines().index('kind = "gspoo"') + 1
    assert found["algo"].where == f"mine/mine.toml:{line}"
    assert found["algo.clip_lo"].hint == "did you mean `algo.clip_low`?"


def test_a_setting_of_another_kind_says_so(task):
    task("[on.cpu.tune]\nrank = 8\n")
    (problem,) = problems_of("mine", "cpu")
    assert problem.hint == 'only `tune.kind = "lora"` has it'


def test_missing_settings_name_the_file_to_add_them_to(write):
    write("mine.toml", "[on.cpu]\n[task]\nsummary = 'x'\n")
    found = problems_of("mine", "cpu")
    assert {problem.code for problem in found} == {"missing"}
    assert {"algo", "tune", "data", "task.modalities"} <= {problem.key for problem in found}
    assert all(problem.hint.endswith("to mine/mine.toml") for problem in found)


def test_a_misspelt_key_is_not_also_missing(write):
    write("mine.toml", TASK.replace("max_prompt_tokens", "max_prompt_token"))
    (problem,) = problems_of("mine", "cpu")
    assert problem.hint == "did you mean `data.max_prompt_tokens`?"


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (("gsm8j", "cpu"), "there is no task `gsm8j`", "did you mean `gsm8k`?"),
        (("toy", "cpuu"), "there is no hardware `cpuu`", "did you mean `cpu`?"),
        (("toy", "h800x4"), "`toy` has no recipe for `h800x4`", "it has one for `cpu`"),
        (("../recipes/toy", "cpu"), "there is no task", ""),
        (("", "cpu"), "there is no task ``", ""),
    ],
)
def test_an_unknown_name_gets_the_nearest(names, message, hint):
    with pytest.raises(InvalidInput) as caught:
        registry.resolve(*names)
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_two_unknown_names_are_told_together():
    assert [problem.hint for problem in problems_of("gsm8j", "cpuu")] == [
        "did you mean `gsm8k`?",
        "did you mean `cpu`?",
    ]


def test_unknown_algorithm_and_tuning():
    found = problems_of("toy", "cpu", algo="dappo", tune="loar")
    assert [problem.hint for problem in found] == ["did you mean `dapo`?", "did you mean `lora`?"]


def test_layers_from_weakest_to_strongest(task):
    task("[on.cpu.train]\nsteps = 5\n")
    found = registry.resolve("mine", "cpu", tune="lora", sets=["tune.rank = 4", "tune.rank = 2"])
    assert found.recipe.train.steps == 5
    assert found.recipe.tune.kind == "lora"
    rank = found.origins["tune.rank"]
    assert (rank.value, rank.origin) == (2, "--set")
    assert [weaker.value for weaker in rank.over] == [4, 16, 32]
    assert found.origins["rollout.max_failed_share"].origin == "default"
    assert found.where("rollout.max_failed_share") is None
    assert found.where("train.steps") == f"mine/mine.toml:{len(TASK.splitlines()) + 2}"


@pytest.mark.parametrize("algo", [None, "gspo"])
@pytest.mark.parametrize("tune", [None, "full"])
def test_asking_for_what_the_pair_has_anyway_changes_nothing(task, algo, tune):
    task("[on.cpu.algo]\nclip_low = 1e-4\n[on.cpu.optim]\nlearning_rate = 0.5\n")
    assert registry.resolve("mine", "cpu", algo=algo, tune=tune) == registry.resolve("mine", "cpu")


def test_a_fragment_keeps_what_it_extends_itself(write, task):
    """`--algo gspo` over `--algo dapo` brings back the clips, which stand in a file that gspo.toml extends."""
    task()
    write("mine.toml", TASK.replace("algo/gspo.toml", "algo/dapo.toml"))
    assert registry.resolve("mine", "cpu").recipe.algo.clip_high == 0.28
    again = registry.resolve("mine", "cpu", algo="gspo")
    assert (again.recipe.algo.kind, again.recipe.algo.clip_high) == ("gspo", 4e-4)
    assert again.origins["algo.clip_high"].over == ()


def test_a_setting_inside_a_table_of_another_kind_says_so(task):
    task("[on.cpu.algo.teacher]\nnodes = 1\n")
    (problem,) = problems_of("mine", "cpu")
    assert problem.hint == 'only `algo.kind = "opd"` has it'


@pytest.mark.parametrize(
    ("pair", "word", "key", "message", "hint"),
    [
        (("omni-preference", "h800x4"), "data.media.frames = [8, 4]", "data.media.frames", "not 8 before 4", None),
        (
            ("omni-preference", "h800x4"),
            "data.modality_weights.images = 1.0",
            "data.modality_weights.images",
            "must be `text`, `image`, `audio` or `video`",
            None,
        ),
        (
            ("mmk12", "ascend910c-x16x2"),
            "algo.teacher.pth = 'x'",
            "algo.teacher.pth",
            "there is no setting",
            "did you mean `algo.teacher.path`?",
        ),
        (("mmk12", "ascend910c-x16x2"), "algo.teacher.nodes = 0", "algo.teacher.nodes", "must be at least 1", None),
    ],
)
def test_settings_in_inner_tables_are_checked(pair, word, key, message, hint):
    (problem,) = problems_of(*pair, sets=[word])
    assert (problem.key, problem.where, problem.hint) == (key, "--set", hint)
    assert message in problem.message


def test_one_file_may_be_given_as_text(task):
    task()
    assert registry.resolve("mine", "cpu", sets=['data.train = "x.parquet"']).recipe.data.train == ["x.parquet"]


def test_the_document_keeps_values_and_origins(task):
    task()
    document = registry.resolve("mine", "cpu", sets=["train.steps = 3"]).as_json()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["schema"] == "omnirl/recipe/1"
    assert document["values"]["train"]["steps"] == 3
    assert document["values"]["model"]["tiny"]["seed"] == 0
    assert document["origins"]["train.steps"] == {"value": 3, "origin": "--set", "over": []}
    assert document["origins"]["batch.mini_prompts"]["over"] == [
        {"value": 16, "origin": registry.resolve("mine", "cpu").origins["batch.mini_prompts"].over[0].origin}
    ]


def test_pairs_are_those_with_a_table(task):
    task("[on.h800x4]\nextends = ['tune/lora.toml']\nevidence = 'smoke'\n")
    found = {(pair.task, pair.hardware): pair for pair in registry.pairs()}
    assert found["mine", "h800x4"] == registry.Pair("mine", "h800x4", "gspo", "lora", "smoke")
    assert found["mine", "cpu"].tune == "full"
    assert ("gsm8k", "cpu") in found


def test_listing_tells_every_broken_file(write):
    write("one.toml", "a = \n")
    write("two.toml", "[on.nowhere]\n")
    with pytest.raises(InvalidInput) as caught:
        registry.pairs()
    assert {problem.where for problem in caught.value.problems} == {"mine/one.toml:1", "mine/two.toml:1"}


def test_an_unknown_hardware_table_does_not_break_the_others(task):
    task("[on.nowhere]\n")
    assert registry.resolve("mine", "cpu").task == "mine"


def test_a_local_folder_comes_before_the_shipped_one(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    local = tmp_path / "recipes"
    local.mkdir()
    (local / "notes.md").write_text("no task here")
    assert Path("recipes") not in registry.search_path()
    shutil.copy(shipped() / "toy.toml", local / "toy.toml")
    extra = tmp_path / "extra"
    assert [folder.name for folder in registry.search_path([extra])] == ["extra", "mine", "recipes", "recipes"]
    assert registry.resolve("toy", "cpu").where("task.summary") == "recipes/toy.toml:6"


def test_the_shipped_folder_is_listed_once(monkeypatch):
    monkeypatch.delenv("OMNIRL_RECIPES", raising=False)
    monkeypatch.chdir(shipped().parent)
    assert len(registry.search_path()) == 1


def test_a_quoted_key_is_not_a_setting(task):
    task('"train.steps" = 3\n')
    (problem,) = problems_of("mine", "cpu")
    assert problem.hint == "without quotes: `train.steps = ...`"
    (problem,) = problems_of("toy", "cpu", sets=['"train.steps" = 3'])
    assert (problem.where, problem.hint) == ("--set", "without quotes: `train.steps = ...`")


def test_a_clash_is_told_once(task):
    task()
    (problem,) = problems_of("mine", "cpu", sets=["batch = 3"])
    assert problem.code == "table-or-value"
    assert "hardware/cpu.toml:" in problem.message


def test_a_kind_without_its_fragment_says_how_to_get_it(task):
    task()
    found = problems_of("mine", "cpu", sets=['tune.kind = "lora"'])
    assert {problem.hint for problem in found} == {"`--tune lora` brings it"}


def test_values_that_json_lacks_are_refused(task):
    task("[on.cpu.rollout.options]\nsince = 2020-01-01\nmost = [inf]\n")
    assert [problem.key for problem in problems_of("mine", "cpu")] == ["rollout.options.since", "rollout.options.most"]
