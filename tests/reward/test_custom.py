"""A scorer of the user's own: tried before a run, called as verl calls it, unable to take the caller along."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from omnirl.errors import InvalidInput
from omnirl.reward.custom import UserScorer, check_scorer

SOURCE = """
import threading
from numbers import Number

def plain(data_source, solution_str, ground_truth, extra_info=None):
    return float(solution_str == ground_truth)

async def asynchronous(data_source, solution_str, ground_truth, extra_info=None, **options):
    return {"score": options.get("bonus", 0) + len(extra_info), "note": "text", "acc": True}

quick = lambda **row: {"score": 0.5}

def raising(**row):
    return {}[row["solution_str"]]

def ending(**row):
    import os
    os._exit(7)

def hanging(**row):
    while row["solution_str"] == "hang":
        pass
    return 1

def too_few(solution_str):
    return 1.0

def nothing(**row):
    return None

def infinite(**row):
    return float("inf")

def where(**row):
    print("to stdout")
    return float(threading.current_thread() is threading.main_thread())

def numpys(**row):
    import numpy
    return {"score": numpy.float32(0.5), "accuracy": numpy.bool_(True)}

value = 7
"""
TRIAL = {"data_source": "d", "reward_model": {"ground_truth": "5"}, "extra_info": {"index": 1}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "json.py"  # the name of a module that everything imports
    path.write_text(SOURCE)
    return path


def judge(file: Path, function: str, response: str = "5", **options: object):
    scorer = UserScorer(file, function, options, timeout_s=3)
    try:
        return scorer.judge("d", response, "5", {"index": 1})
    finally:
        scorer.close()


def test_scores_come_back_as_numbers(file):
    assert judge(file, "plain") == ({"score": 1.0}, "scored", ())
    assert judge(file, "plain", "6") == ({"score": 0.0}, "wrong", ())
    assert judge(file, "plain", "5\ud83d")[0] == {"score": 0.0}
    assert judge(file, "asynchronous", bonus=1) == ({"score": 2.0, "acc": 1.0}, "scored", ())
    assert judge(file, "quick")[0] == {"score": 0.5}
    pytest.importorskip("numpy")
    assert judge(file, "numpys")[0] == {"score": 0.5, "accuracy": 1.0}


def test_it_is_called_from_a_thread_as_in_training_and_may_print(file):
    assert judge(file, "where")[0] == {"score": 0.0}


@pytest.mark.parametrize(
    ("function", "outcome", "says"),
    [
        ("raising", "scorer_error", "json.py:14: KeyError: '5'"),
        ("ending", "scorer_error", "its process ended with 7, twice"),
        ("nothing", "scorer_error", "gave 'None'; a finite number"),
        ("infinite", "scorer_error", "gave 'inf'; a finite number"),
    ],
)
def test_a_fault_is_no_score(file, function, outcome, says):
    scores, came, steps = judge(file, function)
    assert (scores, came) == ({"score": 0.0}, outcome)
    assert says in steps[0]


def test_one_that_hangs_is_replaced(file):
    scorer = UserScorer(file, "hanging", timeout_s=1)
    started = time.monotonic()
    assert scorer.judge("d", "hang", "5", {})[1] == "timeout"
    assert scorer.judge("d", "go", "5", {}) == ({"score": 1.0}, "scored", ())
    assert time.monotonic() - started < 20
    scorer.close()


def test_a_sound_scorer_passes_the_check(file, tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("VALUE = 1.0\n")
    other = tmp_path / "other.py"
    other.write_text("from beside import VALUE\ndef score(**row): return VALUE\n")
    monkeypatch.chdir(tmp_path)
    for path, function in ((file, "plain"), (file, "asynchronous"), (file, "quick"), (other, "score")):
        check_scorer(path, function)
        check_scorer(path, function, trial=TRIAL)
    check_scorer(file, "asynchronous", options={"bonus": 1}, trial=TRIAL)


@pytest.mark.parametrize(
    ("source", "function", "message"),
    [
        ("import missing_module\n", "f", "ModuleNotFoundError.*missing_module"),
        ("\nraise SystemExit('no')\n", "f", "SystemExit: no"),
        ("def g(): pass\n", "f", "AttributeError"),
        ("f = 7\n", "f", "is no function"),
        ("def f(solution_str): return 1\n", "f", "unexpected keyword argument 'data_source'"),
        ("def f(**row): return row['x']\n", "f", "fails on a row of the data.*scorer.py:1: KeyError"),
        ("def f(**row): return 'yes'\n", "f", "fails on a row of the data.*finite number"),
        ("import os\nos._exit(3)\n", "f", "ended with 3|cannot be used"),
    ],
)
def test_a_broken_scorer_is_found_before_a_run(tmp_path, source, function, message):
    path = tmp_path / "scorer.py"
    path.write_text(source)
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        check_scorer(path, function, trial=TRIAL)


def test_an_option_that_it_does_not_take_is_found(file):
    with pytest.raises(InvalidInput, match="unexpected keyword argument 'bonus'"):
        check_scorer(file, "plain", options={"bonus": 1})


def test_the_line_of_a_fault_while_loading_is_told(tmp_path):
    path = tmp_path / "scorer.py"
    path.write_text("x = 1\n\ny = x / 0\ndef f(**row): return 1\n")
    with pytest.raises(InvalidInput, match="ZeroDivisionError") as caught:
        check_scorer(path, "f")
    assert caught.value.where == f"{path}:3"
