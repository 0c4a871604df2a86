"""What verl loads: the same keys for every row, faults that raise, and no heavy import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from omnirl.errors import InvalidInput
from omnirl.recipe import values
from omnirl.reward import outcome
from omnirl.reward.score import SCORERS, check_label, check_options, compute_score, parse_scorer

RIGHT = outcome.row(1.0, 1.0, 1.0, "scored")
NOTHING = outcome.row(0.0, 0.0, 0.0, "wrong")
LABELS = {"gsm8k": "72", "choice": "<answer>B</answer>", "mmk12": "72"}
ANSWERS = {"gsm8k": "#### 72", "choice": "<answer>B</answer>", "mmk12": "<answer>\\boxed{72}</answer>"}


def test_recipes_know_every_scorer() -> None:
    """Their schema keeps a list of its own, since it stands without the scorers."""
    assert set(values.SCORERS) == set(SCORERS)


@pytest.mark.parametrize("scorer", SCORERS)
def test_keys_are_the_same_right_or_wrong(scorer):
    assert compute_score("d", ANSWERS[scorer], LABELS[scorer], {"index": 1}, scorer=scorer) == RIGHT
    for response in (None, "", "x", "\ud83d", "\0", "x" * 1_000_000):
        assert compute_score("d", response, LABELS[scorer], scorer=scorer) == NOTHING
        mode = "strict" if scorer == "choice" else "reference"
        assert compute_score("d", response, LABELS[scorer], scorer=scorer, mode=mode) == NOTHING


def test_the_quick_way_and_the_long_way_give_the_same():
    for scorer in ("choice", "gsm8k"):
        for response in (ANSWERS[scorer], "<answer>A</answer>", "#### 7 or 8", "#### 7", "x", None):
            quick = compute_score("d", response, LABELS[scorer], scorer=scorer)
            assert list(quick) == list(outcome.KEYS)
            assert compute_score("d", response, LABELS[scorer], scorer=scorer, mode="default") == quick


def test_a_score_can_be_changed_by_the_caller():
    compute_score("d", "#### 72", "72", scorer="gsm8k")["score"] = 7.0
    assert compute_score("d", "#### 72", "72", scorer="gsm8k") == RIGHT


@pytest.mark.parametrize(
    ("scorer", "options", "message"),
    [
        ("choice", {"mode": "reference"}, "is no value"),
        ("gsm8k", {"mode": "strict"}, "is no value"),
        ("choice", {"format_weight": 0.1}, "takes no option `format_weight`"),
        ("mmk12", {"format_weigth": 0.1}, "takes no option `format_weigth`"),
        ("mmk12", {"format_weight": -1}, "is no value"),
        ("mmk12", {"format_weight": float("nan")}, "is no value"),
        ("mmk12", {"percent": 1}, "is no value"),
        ("mmk12", {"timeout_s": 0}, "is no value"),
        ("mmk12", {"workers": True}, "is no value"),
        ("mmk12", {"workers": [1]}, "is no value"),
        ("mmk12", {"max_scorer_error_share": 2}, "is no value"),
        ("mmk13", {}, "no scorer is called"),
    ],
)
def test_a_wrong_option_raises_before_anything_is_scored(scorer, options, message):
    with pytest.raises(InvalidInput, match=message):
        check_options(scorer, options)
    with pytest.raises(InvalidInput, match=message):
        compute_score("d", "", "1", scorer=scorer, **options)


def test_the_format_weight_can_be_changed():
    found = compute_score("d", "72", "72", scorer="mmk12", format_weight=1)
    assert (found["score"], found["accuracy"], found["format"]) == (0.5, 1.0, 0.0)


@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("label", [None, "", " $$ "])
def test_a_bad_label_raises_and_names_the_data(scorer, label):
    for response in (None, "", ANSWERS[scorer]):
        with pytest.raises(InvalidInput, match="openai/x: ground truth"):
            compute_score("openai/x", response, label, scorer=scorer)
    with pytest.raises(InvalidInput):
        check_label(scorer, label)


def test_unknown_scorer_and_option_raise():
    with pytest.raises(InvalidInput, match="no scorer is called `gsm8`") as caught:
        compute_score("d", "x", "1", scorer="gsm8")
    assert caught.value.hint == "did you mean `gsm8k`?"
    with pytest.raises(InvalidInput, match="takes no option `strict`"):
        compute_score("d", "x", "1", scorer="gsm8k", strict=True)


def test_what_verl_adds_beside_a_reward_model_is_ignored():
    assert (
        compute_score("d", "#### 1", "1", scorer="gsm8k", reward_router_address="h:1", reward_model_tokenizer=None)
        == RIGHT
    )


def test_threads_and_event_loops_score_alike():
    scores = []
    thread = threading.Thread(target=lambda: scores.append(compute_score("d", "#### 1", "1", scorer="gsm8k")))
    thread.start()
    thread.join()

    async def inside() -> dict[str, float]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, lambda: compute_score("d", "#### 1", "1", scorer="gsm8k"))

    assert [*scores, asyncio.run(inside())] == [RIGHT, RIGHT]


def test_import_brings_nothing_heavy():
    code = (
        "import sys, omnirl.reward.score as s; s.compute_score('d', '#### 1', '1', scorer='gsm8k'); "
        "print(sorted(n for n in sys.modules if '.' not in n and n in "
        "{'torch','numpy','pyarrow','pydantic','typer','rich','verl','ray','sympy','math_verify'})); "
        "print(sorted(n for n in sys.modules if n.startswith('omnirl')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0] == "[]"
    assert "omnirl.recipe" not in shown[1]
    assert "omnirl.data" not in shown[1]


def test_parse_built_in_and_file(tmp_path, monkeypatch):
    assert parse_scorer("gsm8k") == ("gsm8k", None)
    assert parse_scorer("choice") == ("choice", None)
    file = tmp_path / "mine.py"
    file.write_text(
        "raise SystemExit('never run')\nasync def fair(**row): ...\nquick = lambda **row: 0\nfrom os import sep as s\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("fair", "quick", "s"):
        assert parse_scorer(f"mine.py:{name}") == (file, name)
    assert parse_scorer(f"{file}:fair") == (file, "fair")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("mine.py:fare", "has no function `fare`", "mine.py:fair"),
        ("mine.py", "named without a function", "mine.py:fair"),
        ("mine.py:", "has no function ``|named without a function", "mine.py:fair"),
        ("other.py:fair", "does not exist", "relative path"),
        ("broken.py:fair", "not valid Python", None),
        ("nul.py:fair", "not valid Python", None),
        ("empty.py:fair", "has no function `fair`", "top level"),
        ("chioce", "no scorer is called `chioce`", "did you mean `choice`"),
        ("", "no scorer is called ``", "one of"),
        ("mine:fair", "no scorer is called", "one of"),
    ],
)
def test_parse_names_the_mistake(text, message, hint, tmp_path, monkeypatch):
    Path(tmp_path, "mine.py").write_text("def fair(**row): ...\n")
    Path(tmp_path, "broken.py").write_text("def fair(:\n")
    Path(tmp_path, "nul.py").write_bytes(b"\0")
    Path(tmp_path, "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=message) as caught:
        parse_scorer(text)
    if hint:
        assert hint in (caught.value.hint or "")
