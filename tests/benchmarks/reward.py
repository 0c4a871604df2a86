"""Scorers beside verl's own, on the same made-up completions in one run. On demand:

    python tests/benchmarks/reward.py [--rounds 6] [--rows 640] [--peer FILE] [--peer-choice FILE]

Needs verl. Contenders take turns; what counts is the median of the round-by-round ratios (verl's time / ours).

- gsm8k: against `default_compute_score`, which is what verl calls for a row, and against its rule alone.
- mmk12: against `verl.utils.reward_score.math_verify.compute_score` on the same answers and labels; with `--peer FILE`
  also against a whole scorer for MMK12, called as `compute_score(solution_str, ground_truth, extra_info=...)`.
  `distinct` are completions whose wrong answers all differ, `groups` have three wrong answers for each question.
- choice: verl has no such scorer. `--peer-choice FILE` names one, else a regular expression stands in.

Every round has completions that neither side has seen, and omnirl's memory is emptied before it. The start of workers
is not timed: it is reported by itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GROUP = 16
_WORDS = "the angle at the centre is twice that at the rim so we add both sides and find a total of".split()  # noqa: SIM905
_PAIR = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


@dataclass(frozen=True)
class Row:
    response: str
    label: str
    options: str = "{}"


def body(rng: random.Random) -> str:
    words = [rng.choice(_WORDS) for _ in range(rng.randint(30, 400))]
    for _ in range(rng.randint(2, 20)):
        words.insert(
            rng.randrange(len(words)), f"${rng.randint(2, 40)} + {rng.randint(2, 40)} = {rng.randint(40, 80)}$."
        )
    return " ".join(words)


def value(rng: random.Random) -> str:
    """A number or a formula as an answer."""
    a, b, c = rng.randint(2, 99), rng.randint(2, 19), rng.randint(2, 9)
    if rng.random() < 0.6:
        return rng.choice((f"{a * b}", f"-{a}", f"{a}.{b}", f"{a + 10}\u00b0"))
    forms = (
        *(f"\\frac{{{a}}}{{{b}}}", f"{a}\\sqrt{{{b}}}", f"\\frac{{\\sqrt{{{b}}}}}{{{c}}}", f"{a}\\pi", f"x={a}"),
        *(f"({a},{b})", f"\\frac{{{a}\\pi}}{{{b}}}", f"{a}^\\circ", f"{a}x+{b}", f"-\\frac{{{a}}}{{{b}}}"),
    )
    return rng.choice(forms)


def mmk12_rows(count: int, wrong: int | None, seed: int) -> list[Row]:
    rng = random.Random(seed)
    rows: list[Row] = []
    while len(rows) < count:
        letter, label = rng.choice("ABCD"), value(rng)
        is_choice = rng.random() < 0.2
        options = json.dumps({name: value(rng) for name in "ABCD"})
        pool = [value(rng) for _ in range(wrong or 0)]
        for _ in range(GROUP):
            answer = label if rng.random() < 0.5 else rng.choice(pool) if pool else value(rng)
            if is_choice:
                answer = rng.choice("ABCD") if rng.random() < 0.9 else json.loads(options)[letter]
            form = rng.random()
            if form < 0.9:
                response = f"<think>{body(rng)}</think><answer>$\\boxed{{{answer}}}$</answer>"
                if form < 0.6:
                    response = response.replace("$\\boxed", "\\boxed").replace("}$</answer>", "}</answer>")
            else:
                response = f"{body(rng)} \\boxed{{{answer}}}" if form < 0.95 else body(rng)
            rows.append(Row(response, letter if is_choice else label, options))
    return rows[:count]


def gsm8k_rows(count: int, seed: int) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        label = rng.randint(1, 9999)
        answer = label if rng.random() < 0.6 else rng.randint(1, 9999)
        form = rng.random()
        end = f"\n#### {answer}" if form < 0.8 else f"\n#### {answer:,}" if form < 0.9 else f" It is {answer}."
        rows.append(Row(body(rng) + end, str(label)))
    return rows


def choice_rows(count: int, seed: int) -> list[Row]:
    rng = random.Random(seed)
    return [
        Row(
            f"<think>{body(rng)}</think><answer>{rng.choice('ABCD')}</answer>", f"<answer>{rng.choice('ABCD')}</answer>"
        )
        for _ in range(count)
    ]


def timed(score: Callable[[Row], float], rows: Sequence[Row], threads: int = 1) -> tuple[float, list[float]]:
    """Microseconds a row, and the scores."""
    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        found = [score(row) for row in rows] if threads == 1 else list(pool.map(score, rows))
        return (time.perf_counter() - started) / len(rows) * 1e6, found


def compare(
    title: str,
    make: Callable[[int], Sequence[Row]],
    ours: Callable[[Row], float],
    theirs: Callable[[Row], float],
    rounds: int,
    fresh: Callable[[], None] = lambda: None,
    threads: int = 1,
) -> None:
    mine, other, same, seen = [], [], 0, 0
    for seed in range(rounds):
        rows = make(seed)  # new ones, since sympy remembers what it has simplified
        fresh()
        # The first to read the completions also fetches them from memory.
        if seed % 2:
            peer_us, peers = timed(theirs, rows, threads)
            us, verdicts = timed(ours, rows, threads)
        else:
            us, verdicts = timed(ours, rows, threads)
            peer_us, peers = timed(theirs, rows, threads)
        mine.append(us)
        other.append(peer_us)
        same += sum(abs(a - b) < 1e-9 for a, b in zip(verdicts, peers, strict=True))
        seen += len(rows)
    ratio = statistics.median(b / a for a, b in zip(mine, other, strict=True))
    say(
        f"{title:46} {statistics.median(mine):9.1f} us  {statistics.median(other):9.1f} us  {ratio:5.2f} x   "
        f"{same} of {seen} agree"
    )


def by_expression(solution_str: str, ground_truth: str, **_: Any) -> dict[str, float]:
    answers = [found[1] if (found := _PAIR.search(text)) else "" for text in (solution_str, ground_truth)]
    score = float(answers[0] == answers[1])
    return {"score": score, "accuracy": score}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pairs(rows: Sequence[Row]) -> Iterator[Row]:
    """Answer and label of every row whose label is no choice, as an MMK12 scorer hands them to math-verify."""
    for row in rows:
        if row.label not in "ABCDE":
            found = _PAIR.search(row.response)
            yield Row(found[1] if found else row.response, row.label)


def start_up() -> None:
    """How long a worker takes to be ready, and how large it is then."""
    from omnirl.reward.verify import Verifier

    for _ in range(3):
        verifier = Verifier(workers=1)
        started = time.perf_counter()
        verifier.judge("\\frac{1}{2}", "\\boxed{0.5}")
        took = time.perf_counter() - started
        status = Path(f"/proc/{verifier.pool.pids()[0]}/status").read_text()
        kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        verifier.pool.close()
        say(f"a worker's first verdict after {took:.2f} s, {kib / 1024:.0f} MiB")
    command = [sys.executable, "-c", "import verl.utils.reward_score.math_verify"]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    say(f"the import that each of verl's workers does: {time.perf_counter() - started:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=640)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--peer-choice", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from verl.utils.reward_score import default_compute_score, gsm8k, math_verify

    from omnirl.reward import verify
    from omnirl.reward.score import compute_score

    def fresh() -> None:
        for verifier in verify._verifiers.values():
            verifier._known.clear()

    start_up()
    say(f"{'':46} {'omnirl':>12}  {'peer':>12}")

    def texts(seed: int) -> list[Row]:
        return gsm8k_rows(10 * given.rows, seed)

    def ours(row: Row) -> float:
        return compute_score("openai/gsm8k", row.response, row.label, None, scorer="gsm8k")["score"]

    def dispatched(row: Row) -> float:
        return float(default_compute_score("openai/gsm8k", row.response, row.label))

    def rule(row: Row) -> float:
        return float(gsm8k.compute_score(row.response, row.label))

    def our_choice(row: Row) -> float:
        return compute_score("d", row.response, row.label, None, scorer="choice")["score"]

    their_choice = load(given.peer_choice).compute_score if given.peer_choice else by_expression

    compare("gsm8k, as verl calls it", texts, ours, dispatched, given.rounds)
    compare("gsm8k, verl's rule alone", texts, ours, rule, given.rounds)
    compare("choice", lambda seed: choice_rows(10 * given.rows, seed), our_choice,
            lambda row: their_choice(row.response, row.label)["score"], given.rounds)  # fmt: skip
    with ThreadPoolExecutor(8) as threads:  # all workers of both sides are up before anything is timed
        list(threads.map(lambda _: math_verify.compute_score("\\boxed{1}", "1"), range(32)))
        list(threads.map(lambda n: compute_score("d", f"\\boxed{{{n}+x}}", "x^2", scorer="mmk12"), range(32)))
    peer = load(given.peer) if given.peer else None
    for name, wrong in (("distinct", None), ("groups", 3)):
        rows = lambda seed, wrong=wrong: mmk12_rows(given.rows, wrong, seed)  # noqa: E731
        values = lambda seed, rows=rows: list(pairs(rows(seed)))  # noqa: E731
        reference = lambda row: compute_score(  # noqa: E731
            "mmk12", row.response, row.label, {"options": row.options}, scorer="mmk12", mode="reference"
        )["accuracy"]
        default = lambda row: compute_score(  # noqa: E731
            "mmk12", row.response, row.label, {"options": row.options}, scorer="mmk12"
        )["accuracy"]
        verl = lambda row: math_verify.compute_score(row.response, row.label)  # noqa: E731
        compare(f"mmk12 {name}, a math-verify call", values, reference, verl, given.rounds, fresh)
        compare(f"mmk12 {name}, default mode", values, default, verl, given.rounds, fresh)
        compare(f"mmk12 {name}, 8 threads", values, reference, verl, given.rounds, fresh, threads=8)
        if peer is not None:
            whole = lambda row: peer.compute_score(  # noqa: E731
                row.response, row.label, extra_info={"options": row.options}
            )["accuracy"]
            compare(f"mmk12 {name}, whole scorer", rows, reference, whole, given.rounds, fresh)


if __name__ == "__main__":
    main()
