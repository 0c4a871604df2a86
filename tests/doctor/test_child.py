"""Programs that hang, talk without end, or leave others behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from omnirl.doctor import child


@pytest.fixture(autouse=True)
def _answering() -> None:
    child.give_up(now=False)


def ask(code: str, timeout_s: float = 20.0) -> child.Answer:
    return child.ask([sys.executable, "-c", code], timeout_s=timeout_s, environ=os.environ)


def test_what_it_says() -> None:
    answer = ask("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (answer.out, answer.err, answer.fault, answer.said) == ("out\n", "err\n", "ended with exit code 3", "err")


def test_a_program_that_hangs_and_what_it_has_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"""
import subprocess, sys, pathlib, time
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
pathlib.Path({str(note)!r}).write_text(str(inner.pid))
time.sleep(300)
"""
    answer = ask(code, timeout_s=3.0)
    assert answer.fault == "took longer than 3 s"
    pid = int(note.read_text())
    until = time.monotonic() + 10
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def test_one_that_leaves_another_behind_with_its_output(tmp_path: Path) -> None:
    answer = ask("import os, time; print('hi', flush=True); os.fork() or time.sleep(300)", timeout_s=2.0)
    assert answer.out == "hi\n"
    assert answer.fault == "took longer than 2 s"


def test_endless_output_is_cut() -> None:
    answer = ask("import sys\nwhile True: sys.stdout.write('x' * 65536)")
    assert answer.fault == "wrote more than 1 MiB"
    assert len(answer.out) < child.MOST_BYTES + (1 << 17)


def test_no_such_program() -> None:
    assert child.ask(["/no/such/program"], timeout_s=1, environ={}).fault.startswith("cannot be started: no such file")


def test_giving_up_ends_the_wait() -> None:
    threading.Timer(0.5, child.give_up).start()
    assert ask("import time; time.sleep(300)", timeout_s=100).fault == "was given up"


def test_a_module_of_ours_that_cannot_answer() -> None:
    document, fault = child.ask_module("omnirl.no_such_module", timeout_s=20, environ=os.environ)
    assert document is None
    assert "No module named omnirl.no_such_module" in fault


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("said", "document"), [('{"nodes": 1}', {"nodes": 1}), ('{"nodes": ', None), ("", None)])
def test_a_module_that_crashes_after_its_answer_has_answered(
    tmp_path: Path, said: str, document: dict[str, int] | None
) -> None:
    (tmp_path / "probe.py").write_text(
        f"import os, signal\nprint({said!r}, flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    found, fault = child.ask_module("probe", timeout_s=20, environ={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert found == document
    assert fault == ("" if document else said.strip() or "was ended by signal 11")
