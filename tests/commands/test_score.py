"""`omnirl score` as a process: its contract, its tables, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Cli, plain_environment

ROWS = [
    {"response": "<answer>\\boxed{\\frac{2}{4}}</answer>", "ground_truth": "0.5", "data_source": "mmk12"},
    {"response": "<answer>B</answer>", "ground_truth": "B", "data_source": "mmk12"},
    {"response": "I think 7", "ground_truth": "8", "data_source": "other"},
    {"response": None, "ground_truth": "8", "data_source": "other"},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_the_contract(cli: Cli, file: Path, tmp_path: Path) -> None:
    done = cli("score", "rows.jsonl", "--reward", "mmk12", "--rows", "out.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "omnirl/score/1"
    assert document["n"] == 4
    assert document["mean"] == pytest.approx((1 + 1.15 / 1.3) / 4)
    assert document["outcomes"] == {"scored": 2, "wrong": 2, "timeout": 0, "scorer_error": 0}
    assert document["sources"]["other"]["accuracy"] == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert [row["outcome"] for row in rows] == ["scored", "scored", "wrong", "wrong"]
    assert [row["accuracy"] for row in rows] == [1, 1, 0, 0]
    assert [row["format"] for row in rows] == [1, 0.5, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl"]


def test_tables_and_steps(cli: Cli, file: Path) -> None:
    done = cli("score", "rows.jsonl", "--reward", "mmk12", "--explain", "--show", "2")
    assert done.returncode == 0, done.stderr
    assert "rows.jsonl:1: scored" in done.stdout
    assert "math-verify reads the answer as '1/2' (Half)" in done.stdout
    assert "accuracy 1, format 0.5: (1 + 0.3 x 0.5) / 1.3" in done.stdout
    assert "a choice: the label is B, the answer says B" in done.stdout
    assert "rows.jsonl:3" not in done.stdout
    table = done.stdout.split("\n\n")
    assert any("right, neither" in part and "0.7692" in part for part in table)
    assert ["scored", "2", "0.5"] in [line.split() for line in done.stdout.splitlines()]
    assert ["all", "4"] in [line.split()[:2] for line in done.stdout.splitlines()]


def test_what_two_scorers_disagree_on(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(solution_str, **_):\n    return float('B' in (solution_str or ''))\n")
    done = cli("score", "rows.jsonl", "--reward", "mmk12:reference", "--compare", "mine.py:score", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["compare"]["disagreements"] == 2
    assert document["compare"]["mean"] == 0.25
    assert [row["where"] for row in document["rows"]] == ["rows.jsonl:1", "rows.jsonl:2"]
    plain = cli("score", "rows.jsonl", "--reward", "mmk12", "--compare", "mine.py:score")
    assert "2 of 4 rows differ" in plain.stdout


def test_standard_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "omnirl", "score", "-", "--reward", "gsm8k", "--json"],
        cwd=tmp_path,
        env=plain_environment(),
        input=b'{"output": "#### 72", "gts": "72", "score": 1.0}\n',
        capture_output=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["mean"] == 1.0


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("rows.jsonl",), 2, "--reward"),
        (("rows.jsonl", "--reward", "chioce"), 3, "did you mean `choice`?"),
        (("rows.jsonl", "--reward", "choice"), 3, "rows.jsonl:1: mmk12: ground truth '0.5' has no answer"),
        (("rows.jsonl", "--reward", "recorded"), 2, "only for --compare"),
        (("rows.jsonl", "--reward", "mmk12", "--mode", "strict"), 3, "one of default, reference"),
        (("rows.jsonl", "--reward", "mmk12", "--option", "format_weight"), 2, "no line of TOML"),
        (("rows.jsonl", "--reward", "mmk12", "--option", "formt_weight = 1"), 3, "did you mean `format_weight`?"),
        (("absent.jsonl", "--reward", "mmk12"), 3, "no such file"),
        (("empty.jsonl", "--reward", "mmk12"), 3, "holds no row"),
        (("broken.jsonl", "--reward", "gsm8k", "--rows", "out.jsonl"), 3, "broken.jsonl:2: the line is not JSON"),
        (("rows.jsonl", "--reward", "absent.py:score"), 3, "does not exist"),
        (("rows.jsonl", "--reward", "bad.py:score"), 3, "ZeroDivisionError"),
        (("rows.jsonl", "--reward", "mmk12", "--compare", "recorded"), 3, "rows.jsonl:1: the row has no `score`"),
        (("rows.jsonl", "--reward", "mmk12", "--rows", "no/folder/out.jsonl"), 4, "cannot be written"),
    ],
)
def test_mistakes(cli: Cli, file: Path, tmp_path: Path, words: tuple[str, ...], code: int, says: str) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text('{"response": "#### 1", "ground_truth": "1"}\n{\n')
    (tmp_path / "bad.py").write_text("1 / 0\ndef score(**_): return 1\n")
    done = cli("score", *words)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert says in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "out.jsonl").exists()


def test_faults_of_a_scorer_are_told(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def score(**_):\n    raise ValueError('no')\n")
    done = cli("score", "rows.jsonl", "--reward", "bad.py:score", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["outcomes"]["scorer_error"] == 4
    assert "the scorer failed on 4 of 4 rows" in done.stderr
    assert "bad.py:2: ValueError: no" in done.stderr


def test_real_problems_with_made_up_answers(cli: Cli, shared: Path, tmp_path: Path) -> None:
    forms = (
        "#### %s",
        "####%s",
        "so \\boxed{%s}",
        "#### $%s",
        "#### %s.00",
        "#### **%s**",
        "#### %s apples.",
        "It is %s",
    )
    records = []
    for number, line in enumerate((shared / "data/gsm8k/test.jsonl").read_text().splitlines()):
        label = json.loads(line)["answer"].rpartition("####")[2].strip()
        answer = label if number % 2 else f"1{label}"
        records.append({"response": forms[number // 2 % 8] % answer, "ground_truth": label})
    (tmp_path / "gsm8k.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    done = cli("score", "gsm8k.jsonl", "--reward", "gsm8k", "--json")
    found = sum(number % 2 and number // 2 % 8 != 7 for number in range(len(records)))
    document = json.loads(done.stdout)
    assert (document["n"], document["outcomes"]["scored"]) == (1319, found)
