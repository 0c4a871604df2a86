"""The service around math-verify: its verdicts, and that nothing can kill it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnirl.errors import EnvironmentLacks
from omnirl.reward import verify
from omnirl.reward.pool import Died, Pool
from omnirl.reward.verify import Verdict, Verifier
from tests.conftest import plain_environment

HANGS = "\\boxed{9^{9^{9^9}}}"
HALF = ("\\frac{1}{2}", "\\boxed{0.5}")


@pytest.fixture(scope="module")
def plain_math_verify():
    """math-verify called as verl calls it, in this process."""
    from math_verify.grader import verify as same
    from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig, parse

    def right(gold: str, answer: str) -> bool:
        golds = parse("\\boxed{" + gold + "}", (LatexExtractionConfig(),))
        found = parse(answer, (ExprExtractionConfig(), LatexExtractionConfig()))
        return any(same(g, a) for a in found for g in golds)

    return right


@pytest.fixture
def small():
    """One worker that gives up after two seconds."""
    made = Verifier(workers=1, timeout_s=2)
    yield made
    made.pool.close()


def dead(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_until(holds, seconds=15):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


EQUAL = [
    *(("\\frac{1}{2}", "0.5"), ("\\sqrt{8}", "2\\sqrt{2}"), ("(x+1)^2", "x^2+2x+1"), ("2x", "x+x"), ("x=3", "3")),
    *(("\\{1,2\\}", "\\{2,1\\}"), ("1,2", "2,1"), ("(1,2)", "1,2"), ("50\\%", "0.5"), ("9%", "9"), ("\\pi", "3.14")),
    *(("1/3", "0.333333"), ("x>2", "2<x"), ("y=2x+1", "2x-y+1=0"), ("\\text{yes}", "yes"), ("|x|", "x")),
    *(("cat", "act"), ("\\frac{x}{x}", "1"), ("\\log_2 8", "3"), ("\\infty", "\\infty"), ("1e3", "1000")),
    *(("5\\text{ cm}", "5"), ("\\pm 3", "3,-3"), ("5!", "120"), ("12:30", "12:30"), ("\\frac{1}{0}", "5")),
    *(("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}"), ("\\sqrt{2}", "1.414214"), ("[1,2)", "(1,2]"), ("i^2", "-1")),
    *(("1000000", "1000000.0000001"), ("{", "{"), ("", ""), ("\\text{}", "\\text{}"), ("\\frac{1}{0}", "\\frac{1}{0}")),
    ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
]
AROUND = (
    *("\\boxed{%s}", "$\\boxed{%s}$", "%s", "$%s$", "The answer is \\boxed{%s}.", "So $y$ is \\boxed{%s} and 7"),
    *(
        "The final answer is \\boxed{%s} and not 7",
        "\\boxed{%s} or \\boxed{3}",
        "\\[ \\boxed{%s} \\]",
        " [ \\boxed{%s} ] ",
    ),
)


@pytest.mark.parametrize("around", AROUND)
def test_verdicts_are_math_verifys(verifier, plain_math_verify, around):
    for one, other in EQUAL:
        for gold, answer in ((one, other), (other, one)):
            text = around.replace("%s", answer)
            assert verifier.judge(gold, text, exact=False).right == plain_math_verify(gold, text), (gold, text)


NUMBER = st.from_regex(r"-?(0|[1-9][0-9]{0,9})(\.[0-9]{1,5})?", fullmatch=True) | st.sampled_from(
    ["0", "-0", "0.0", "5", "5.0"]
)


@settings(max_examples=200)
@given(NUMBER, NUMBER, st.sampled_from(["\\boxed{%s}", "%s", " %s\n", "$\\boxed{%s}$", "$%s$", "so \\boxed{%s} then"]))
def test_the_quick_way_for_numbers_gives_math_verifys_verdict(verifier, plain_math_verify, gold, answer, around):
    for other in (answer, gold, gold + "0", gold + ".0"):
        text = around.replace("%s", other)
        assert verifier.judge(gold, text, exact=False).right == plain_math_verify(gold, text)


PIECES = st.sampled_from([*"0123xy+-=^_{}()$ \n", "\\frac", "\\boxed{", "final answer is ", "[", "\\%"])


@settings(max_examples=30)
@given(st.lists(PIECES, max_size=20).map("".join))
def test_any_text_has_math_verifys_verdict(verifier, plain_math_verify, text):
    for gold, answer in (("5", text), ("x", f"\\boxed{{{text}}}"), (text, f"\\boxed{{{text}}}")):
        assert verifier.judge(gold, answer, exact=False).right == plain_math_verify(gold, answer)


def test_numbers_too_small_for_math_verify_are_told_apart(verifier):
    for gold, answer in (("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}"), ("1/2004!", "1/2006!")):
        assert verifier.judge(gold, f"\\boxed{{{answer}}}", exact=False).right
        assert not verifier.judge(gold, f"\\boxed{{{answer}}}").right
        assert verifier.judge(gold, f"\\boxed{{{gold}}}").right


def test_a_verdict_is_asked_for_once(verifier):
    def asked() -> int:
        return len(verifier._known)

    before = asked()
    for around in ("\\boxed{x+8123}", "so \\boxed{x+8123}.", "Now we see that \\boxed{x+8123} is it"):
        assert verifier.judge("8123+x", around).right
    assert asked() == before + 1
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda _: verifier.judge("8124+x", "\\boxed{x+8124}"), range(64)))
    assert {verdict.right for verdict in verdicts} == {True}
    assert len({id(verdict) for verdict in verdicts}) == 1
    assert asked() == before + 2


def test_what_reads_alike_only_in_its_box_is_not_mixed_up(verifier):
    garbage = "\\boxed{@@}"
    assert not verifier.judge("5", f"{garbage} is not it").right
    with ThreadPoolExecutor(4) as threads:
        texts = [f"the answer: 5 {garbage}", f"the answer: 6 {garbage}"] * 20
        found = [verdict.right for verdict in threads.map(lambda text: verifier.judge("5", text), texts)]
    assert found == [True, False] * 20


def test_a_killed_worker_is_replaced(small):
    assert small.judge(*HALF).right
    (pid,) = small.pool.pids()
    os.kill(pid, signal.SIGKILL)
    for number in range(3):
        assert small.judge(f"{number}+x", f"\\boxed{{x+{number}}}").right
    assert small.pool.replaced == 1
    assert small.pool.pids() != [pid]


def test_a_stopped_worker_is_replaced(small):
    assert small.judge(*HALF).right
    (pid,) = small.pool.pids()
    os.kill(pid, signal.SIGSTOP)
    long = "\\boxed{y+1}" + " and so on" * 4000  # more than a pipe holds: writing must not wait for ever either
    assert small.judge("1+y", long).outcome == "timeout"
    assert small.judge("1+y", long).right
    assert dead(pid)


def test_waiting_for_a_worker_costs_a_right_answer_nothing(small):
    assert small.judge(*HALF).right
    with ThreadPoolExecutor(4) as threads:
        hung = [threads.submit(small.judge, "5", f"{HANGS} {number}") for number in range(3)]
        time.sleep(0.3)
        started = time.monotonic()
        assert threads.submit(small.judge, "2+x", "\\boxed{x+2}").result().right
        assert time.monotonic() - started > 1.5, "it was never behind the others"
        assert [future.result().outcome for future in hung] == ["timeout"] * 3


def test_a_time_out_is_not_remembered(small):
    assert small.judge("5", HANGS) == Verdict("timeout", ("no verdict within 2 s; the worker is replaced",))
    assert not small._known
    assert not small._asked


def test_a_worker_that_holds_too_much_memory_leaves(small):
    huge = "\\boxed{" + "+".join(f"x_{{{number}}}^{{{number}}}" for number in range(4000)) + "}"
    small.judge("5", huge)
    assert small.judge(*HALF).right
    for pid in small.pool.pids():
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert str(verify.MEMORY_BYTES) in next(line for line in limits.splitlines() if line.startswith("Max address"))


def test_threads_loops_and_forks_score_alike(verifier):
    found = []
    thread = threading.Thread(target=lambda: found.append(verifier.judge(*HALF).right))
    thread.start()
    thread.join()

    async def inside() -> list[bool]:
        loop = asyncio.get_running_loop()
        asked = (loop.run_in_executor(None, verifier.judge, f"{n}+x", f"\\boxed{{x+{n}}}") for n in range(50, 60))
        return [verdict.right for verdict in await asyncio.gather(*asked)]

    assert [*found, *asyncio.run(inside())] == [True] * 11


def in_a_fork(queue, pids) -> None:
    made = verify.shared(1, 20)
    right = made.judge("3+x", "\\boxed{x+3}").right
    queue.put((right, set(made.pool.pids()) & set(pids)))
    made.pool.close()


def test_a_fork_has_workers_of_its_own():
    made = verify.shared(1, 20)
    assert made.judge(*HALF).right
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_a_fork, args=(queue, made.pool.pids()))
    child.start()
    assert queue.get(timeout=60) == (True, set())
    child.join()
    assert verify.shared(1, 20) is made
    assert made.judge("4+x", "\\boxed{x+4}").right
    assert made.pool.replaced == 0


@pytest.mark.parametrize("busy", [False, True])
def test_workers_leave_with_their_parent(busy):
    code = (
        "import sys, threading, time; from omnirl.reward.verify import Verifier; v = Verifier(workers=1, timeout_s=1)\n"
        f"v.judge(*{HALF!r}); print(*v.pool.pids(), flush=True)\n"
        + (f"threading.Thread(target=v.judge, args=('5', {HANGS!r})).start()\n" if busy else "")
        + "time.sleep(100)\n"
    )
    command = [sys.executable, "-c", code]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment())
    try:
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
    finally:
        parent.kill()
        parent.communicate()
    assert wait_until(lambda: dead(pid), 30)


def test_a_math_verify_that_does_not_work_is_an_error_and_no_score(tmp_path, monkeypatch):
    (tmp_path / "math_verify").mkdir()
    (tmp_path / "math_verify" / "__init__.py").write_text("raise ImportError('antlr4 is of another version')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = Verifier(workers=1)
    for _ in range(2):
        with pytest.raises(EnvironmentLacks, match="antlr4 is of another version") as caught:
            broken.judge(*HALF)
    assert "pip install" in (caught.value.hint or "")
    assert not broken._asked
    monkeypatch.delenv("PYTHONPATH")
    assert broken.judge(*HALF).right


def test_a_math_verify_that_reads_no_latex_is_found_out(tmp_path, monkeypatch):
    broken = "def broken(*_, **__): raise ValueError('made for another antlr')"
    (tmp_path / "sitecustomize.py").write_text(f"import math_verify.parser as p\n{broken}\np.latex2sympy = broken\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="cannot read LaTeX here"):
        Verifier(workers=1).judge(*HALF)


def test_a_file_in_the_working_folder_takes_no_modules_place(tmp_path, monkeypatch):
    for name in ("sympy", "json", "choice", "worker", "math_verify"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working folder')")
    monkeypatch.chdir(tmp_path)
    made = Verifier(workers=1)
    assert made.judge(*HALF).right
    made.pool.close()


def test_an_interrupted_caller_leaves_no_reply_behind(small):
    assert small.judge(*HALF).right
    (pid,) = small.pool.pids()

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            small.judge("5", HANGS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert dead(pid)
    assert not small._asked
    assert small.judge("7+x", "\\boxed{x+7}").right


def test_a_reply_that_kills_worker_after_worker_is_a_fault(tmp_path, monkeypatch):
    handler = tmp_path / "suicidal.py"
    handler.write_text("import os\ndef prepare():\n    return lambda request: os._exit(3)\n")
    pool = Pool((str(handler),), size=1, what="it")
    with pytest.raises(Died) as caught:
        pool.ask({}, 20)
    assert caught.value.code == 3
    assert pool.replaced == 2
    assert pool.pids() == []
