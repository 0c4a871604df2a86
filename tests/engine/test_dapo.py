"""A real DAPO run with both of its variants: groups that teach nothing are replaced, and long answers lose reward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.engine.test_runs import FAILED, PROMPTS, RUN_S, data, finished, words

__all__ = ["data"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DROPPED = "training/filter_groups/evicted_samples"
LONGEST = 24

# Rows with an even number are right whatever is answered, so each of their groups is all equal. The others are judged
# by the letters of the answer. Nothing is ever rewarded, so that what reward there is comes from the answer's length.
SCORER = """
def score(solution_str, extra_info, **_):
    letters = sum(map(str.isalpha, solution_str)) / (len(solution_str) + 1)
    return {"score": 0.0, "acc": 1.0 if extra_info["index"] % 2 == 0 else letters + 1e-6 * len(solution_str)}
"""


def test_both_variants(cli: Cli, data: Path, tmp_path: Path) -> None:
    scorer = tmp_path / "halves.py"
    scorer.write_text(SCORER)
    sets = [
        "algo.filter_groups = true",
        "algo.overlong_buffer = true",
        f"algo.overlong_tokens = {LONGEST - 1}",
        f"data.max_response_tokens = {LONGEST}",
        f'reward.scorer = "{scorer}:score"',
        "batch.group_size = 8",
        "optim.learning_rate = 5e-3",
    ]
    done = cli(*words(data, "dapo", *sets, steps=4), "--algo", "dapo", timeout_s=RUN_S)
    values = finished(tmp_path, done, "dapo", 4)
    for step in values:
        # half of the rows teach nothing, so about as many groups are dropped as are kept, and the batch is full
        assert step[DROPPED] >= PROMPTS / 2
        assert step[FAILED] == 0
        # a penalty of 1 for an answer of the full length, falling to 0 at the first token
        length = step["response_length/mean"]
        assert step["critic/score/mean"] == pytest.approx(-(length - 1) / (LONGEST - 1), abs=1e-3)
