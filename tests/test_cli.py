"""What every command promises: streams, exit codes, plain pipes, whole text."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omnirl import console
from omnirl.errors import InvalidInput, Problem
from tests.conftest import Cli, plain_environment

ESCAPE = "\x1b"


def on_a_terminal(*words: str, cwd: Path, **env: str) -> str:
    """What `omnirl WORDS...` writes when all its streams are a terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "omnirl", *words],
        cwd=cwd,
        env=plain_environment(**{"TERM": "xterm", **env}),
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # Linux's way of saying that the other end is closed
            break
        if not part:
            break
        written += part
    process.wait(60)
    os.close(leader)
    return written.decode()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--version"], 0, ""),
        (["--help"], 0, ""),
        (["trian"], 2, "error: no such command 'trian'. Did you mean 'train'?"),
        (["train", "toy"], 2, "error: missing option '--on'"),
        (["train", "toy", "--on", "cpu", "--dry-rnu"], 2, "--dry-run"),
        (["train", "toy", "--on", "cpu", "-1"], 2, "words for verl go after `--`"),
        (["train", "toy", "--on", "cpu", "word"], 2, "error: `word` is neither an option"),
        (["train", "toy", "--on", "cpu", "--force"], 2, "error: `--force` goes with `--resume`"),
        (["train", "toy", "--on", "cpu", "--resume"], 2, "to go on with"),
        (["train", "toyy", "--on", "cpu"], 3, "hint: did you mean `toy`?"),
        (["train", "toy", "--on", "cpuu"], 3, "hint: did you mean `cpu`?"),
        (["train", "toy", "--on", "cpu", "--set", "train.stps = 1"], 3, "did you mean `train.steps`?"),
        (["train", "toy", "--on", "cpu"], 3, "omnirl data prepare toy --output data/toy"),
        (["run", "show", "nothing"], 3, "error: there is no run `nothing`"),
        (["run", "list"], 0, "no runs in runs"),
        (["--color", "blue", "run", "list"], 2, "--color"),
    ],
)
def test_exit_codes_and_messages(cli: Cli, words: list[str], code: int, said: str) -> None:
    done = cli(*words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
    assert ESCAPE not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [[], ["run"], ["recipe"], ["data"]])
def test_no_arguments_show_the_help_on_stderr(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Usage: omnirl")


def test_help_lists_the_commands_by_panel(cli: Cli) -> None:
    text = cli("-h").stdout
    run, data = text.index("\nRun:\n"), text.index("\nRecipes and data:\n")
    assert run < text.index("  quickstart ") < text.index("  train ") < data < text.index("  recipe ")
    assert cli("--help").stdout == text


@pytest.mark.parametrize(
    "words", [["quickstart", "--help"], ["train", "--help"], ["run", "show", "--help"], ["run", "list", "--help"]]
)
def test_every_command_has_help(cli: Cli, words: list[str]) -> None:
    done = cli(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: omnirl ")


def test_versions_as_json(cli: Cli) -> None:
    document = json.loads(cli("--version", "--json").stdout)
    assert document["schema"] == "omnirl/version/1"
    assert {"omnirl", "verl", "vllm-omni", "torch"} <= set(document)
    assert document["vllm-omni"] is None or isinstance(document["vllm-omni"], str)
    assert cli("-q", "--version").stdout == f"omnirl {document['omnirl'] or 'unknown'}\n"


@pytest.mark.parametrize(
    "env", [{"GITHUB_ACTIONS": "1"}, {"FORCE_COLOR": "0"}, {"CI": "1", "GITHUB_ACTIONS": "true"}, {}]
)
@pytest.mark.parametrize("words", [["--help"], ["recipe", "list"], ["trian"], ["train", "toyy", "--on", "cpu"]])
def test_a_pipe_gets_no_escapes(cli: Cli, env: dict[str, str], words: list[str]) -> None:
    done = cli(*words, env=env)
    assert ESCAPE not in done.stdout + done.stderr


def test_json_is_clean_even_when_colour_is_forced(cli: Cli) -> None:
    done = cli("--color", "always", "recipe", "list", "--json", env={"FORCE_COLOR": "1"})
    assert json.loads(done.stdout)["schema"] == "omnirl/recipes/1"


def test_a_terminal_gets_colour_unless_told_otherwise(tmp_path: Path) -> None:
    words = ("train", "toyy", "--on", "cpu")
    assert ESCAPE in on_a_terminal(*words, cwd=tmp_path)
    assert ESCAPE not in on_a_terminal(*words, cwd=tmp_path, NO_COLOR="1")
    assert ESCAPE not in on_a_terminal("--color", "never", *words, cwd=tmp_path)
    assert ESCAPE not in on_a_terminal(*words, cwd=tmp_path, TERM="dumb")


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m omnirl recipe show toy --on cpu --json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def test_a_closed_stdout_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "omnirl", "recipe", "list"],
        cwd=tmp_path,
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_works_without_a_home(cli: Cli) -> None:
    done = cli("recipe", "list", "--json", env={"HOME": "/nonexistent"})
    assert done.returncode == 0, done.stderr


def test_a_fault_of_omnirl_leaves_a_log_and_one_line(tmp_path: Path) -> None:
    script = (
        "from omnirl import __main__, cli\n"
        "def broken(argv): raise ZeroDivisionError('a\\nb')\n"
        "cli.run = broken\n"
        "raise SystemExit(__main__.run(['run', 'list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=plain_environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 70
    assert done.stderr.startswith("error: a fault of omnirl itself: ZeroDivisionError: a; the traceback is in ")
    assert done.stderr.count("\n") == 1
    (log,) = tmp_path.glob("omnirl-bug-*.log")
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_give_their_exit_code(tmp_path: Path, signum: int, code: int) -> None:
    script = (
        "import time\n"
        "from omnirl import __main__, cli\n"
        "def slow(argv):\n    print('up', flush=True)\n    time.sleep(30)\n"
        "cli.run = slow\n"
        "raise SystemExit(__main__.run(['run', 'list']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    time.sleep(0.1)
    process.send_signal(signum)
    assert process.wait(20) == code
    assert process.stderr.read() == ""


def test_text_from_outside_prints_whole(capsys: pytest.CaptureFixture[str]) -> None:
    console.line("targets [q_proj] in [/tmp/x]")
    console.table("T", ("a", "b"), [("[q_proj]", "x" * 300), ("[/tmp/x]", None)])
    console.report(InvalidInput("[bold]`x` is wrong", where="[a].toml:3", hint="use [q_proj]"))
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "targets [q_proj] in [/tmp/x]"
    assert out.splitlines()[2] == f"[q_proj]  {'x' * 300}"
    assert err == "error: [a].toml:3: [bold]`x` is wrong\n\nhint: use [q_proj]\n"


def test_text_from_outside_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console.line("a\x1b[2Jb\rc\x9bd")
    console.note("lone \ud83d")
    out, err = capsys.readouterr()
    assert out == "a\\x1b[2Jb\\x0dc\\x9bd\n"
    assert err == "lone \\ud83d\n"


def test_json_is_one_document_in_the_order_given(capsys: pytest.CaptureFixture[str]) -> None:
    console.emit_json(
        {"schema": "x/1", "b": float("nan"), "a": [float("inf"), 1.5], "path": Path("/x"), "text": "é\ud83d\x9b中"}
    )
    out = capsys.readouterr().out
    assert json.loads(out) == {"schema": "x/1", "b": None, "a": [None, 1.5], "path": "/x", "text": "é\ud83d\x9b中"}
    assert list(json.loads(out)) == ["schema", "b", "a", "path", "text"]
    assert "\x9b" not in out
    out.encode()


def test_problems_are_listed_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    problems = (
        Problem("low", "must be above clip_low", key="algo.clip_high", where="toy.toml:14"),
        Problem("unknown-key", "unknown", key="tune.rnk", where="--set", hint="did you mean `tune.rank`?"),
    )
    console.report(InvalidInput("recipe is not valid (2 problems)", problems=problems, hint="look"))
    assert capsys.readouterr().err.splitlines() == [
        "error: recipe is not valid (2 problems)",
        "  toy.toml:14  algo.clip_high  must be above clip_low               low",
        "  --set        tune.rnk        unknown (did you mean `tune.rank`?)  unknown-key",
        "",
        "hint: look",
    ]


def test_progress_in_a_pipe_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("reading", 3) as advance:
        advance()
        advance(2)
    with console.status() as status:
        status.update(["line"], "said")
        status.update(["line"])
    assert capsys.readouterr() == ("", "said\n")
