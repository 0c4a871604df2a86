from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from omnirl.recipe.search import shipped
from tests.conftest import ROOT, Cli


def test_it_loads_at_once(inside: Cli, tmp_path: Path) -> None:
    done = inside("recipe", "new", "mine", "--from", "gsm8k", "--on", "h800x4")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "recipes/mine.toml\n"
    assert done.stderr == "look at it: omnirl recipe show mine --on h800x4 --origin\n"
    shown = inside("recipe", "show", "mine", "--on", "h800x4", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["origins"]["evidence"]["origin"].startswith("recipes/mine.toml:")
    assert inside("recipe", "check", "mine").stdout == "1 recipe is right\n"
    assert inside("recipe", "diff", "gsm8k/h800x4", "mine/h800x4").returncode == 0


def test_it_has_all_the_hardware_of_the_task(inside: Cli) -> None:
    assert inside("recipe", "new", "mine", "--from", "nextqa").returncode == 0
    pairs = json.loads(inside("recipe", "list", "--json").stdout)["pairs"]
    of = {task: [p["hardware"] for p in pairs if p["task"] == task] for task in ("nextqa", "mine")}
    assert of["mine"] == of["nextqa"]


def test_evidence_is_not_inherited(inside: Cli) -> None:
    inside("recipe", "new", "mine", "--from", "toy")
    pairs = json.loads(inside("recipe", "list", "--json").stdout)["pairs"]
    assert {p["task"]: p["evidence"] for p in pairs if p["task"] in ("toy", "mine")} == {
        "toy": "verified",
        "mine": "planned",
    }


def test_nothing_is_overwritten(inside: Cli, tmp_path: Path) -> None:
    assert inside("recipe", "new", "mine", "--from", "toy").returncode == 0
    before = (tmp_path / "recipes" / "mine.toml").read_text()
    again = inside("recipe", "new", "mine", "--from", "gsm8k")
    assert again.returncode == 2
    assert "there is already a recipe at `recipes/mine.toml`" in again.stderr
    assert (tmp_path / "recipes" / "mine.toml").read_text() == before
    (tmp_path / "recipes" / "linked.toml").symlink_to("nowhere.toml")
    assert inside("recipe", "new", "linked", "--from", "toy").returncode == 2
    assert sorted(path.name for path in (tmp_path / "recipes").iterdir()) == ["linked.toml", "mine.toml"]


def test_the_users_folder(inside: Cli, tmp_path: Path) -> None:
    env = {"OMNIRL_RECIPES": os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")])}
    assert inside("recipe", "new", "mine", "--from", "toy", env=env).stdout == f"{tmp_path}/one/mine.toml\n"
    done = inside("recipe", "new", "other", "--from", "mine", "--output", "three", env=env)
    assert done.stdout == "three/other.toml\n"
    assert f"to use it: export OMNIRL_RECIPES={tmp_path}/three\n" in done.stderr
    wider = {"OMNIRL_RECIPES": os.pathsep.join([env["OMNIRL_RECIPES"], "three"])}
    assert inside("recipe", "show", "other", "--on", "cpu", env=wider).returncode == 0


def test_a_recipe_before_the_shipped_one(inside: Cli) -> None:
    assert inside("recipe", "new", "gsm8k", "--from", "gsm8k", "--on", "cpu").returncode == 0
    shown = inside("recipe", "show", "gsm8k", "--on", "cpu", "--origin")
    assert shown.returncode == 0, shown.stderr
    assert 'evidence = "planned"  # recipes/gsm8k.toml:' in shown.stdout
    assert inside("recipe", "show", "gsm8k", "--on", "h800x4").returncode == 0
    assert inside("recipe", "check").returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("mine.toml", "--from", "toy"), 2, "write `mine`"),
        (("../mine", "--from", "toy"), 2, "`../mine` cannot name a recipe"),
        (("a/b", "--from", "toy"), 2, "cannot name a recipe"),
        (("x" * 101, "--from", "toy"), 2, "cannot name a recipe"),
        (("avqa", "--from", "toy"), 2, "there is already a task `avqa`"),
        (("mine", "--from", "toi"), 3, "did you mean `toy`?"),
        (("mine", "--from", "toy", "--on", "h800x4"), 3, "`toy` has no recipe for `h800x4`"),
        (("mine", "--from", "toy", "--output", "/proc/nowhere"), 4, "cannot be written"),
        (("mine", "--from", "toy", "--output", str(shipped())), 2, "come with omnirl"),
        (("mine",), 2, "--from"),
    ],
)
def test_what_is_refused_leaves_nothing(
    inside: Cli, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = inside("recipe", "new", *words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_checkouts_own_folder_is_left_alone(inside: Cli, tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    done = inside("recipe", "new", "mine", "--from", "toy")
    assert done.returncode == 2
    assert "hint: omnirl recipe new mine --from toy --output DIR" in done.stderr
    assert not (ROOT / "recipes" / "mine.toml").exists()
