"""The entry point: answers `--version` before anything is imported, and turns a fault of omnirl into exit code 70."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from omnirl.errors import Exit


def main() -> None:
    """Run the command line and leave with its exit code."""
    code = run(sys.argv[1:])
    # What is left ends with the process: looking for cycles in it would take a twentieth of a second.
    gc.freeze()
    sys.exit(code)


def run(argv: list[str]) -> int:
    """Run `omnirl ARGV...`; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _leave)
    # `nohup` ignores SIGHUP on purpose; otherwise a closed terminal stops a run as SIGTERM does.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _leave)
    try:
        if argv and set(argv) <= {"--version", "-V", "--json"} and argv != ["--json"]:
            code = _version(as_json="--json" in argv)
        else:
            from omnirl import cli

            code = cli.run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        code = Exit.OK
    except Exception as fault:  # noqa: BLE001  the one place where a fault of omnirl itself ends
        code = _bug(fault)
    _drop_unread_output()
    return code


def _version(*, as_json: bool) -> int:
    from omnirl import machine

    if as_json:
        from omnirl import console

        console.emit_json({"schema": "omnirl/version/1", **machine.versions()})
    else:
        sys.stdout.write(f"omnirl {machine.version('omnirl') or 'unknown'}\n")
    return Exit.OK


def _leave(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def _bug(fault: Exception) -> int:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(fault))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="omnirl-bug-", suffix=".log", delete=False, errors="replace"
        ) as log:
            log.write(f"omnirl {' '.join(sys.argv[1:])}\n{text}")
        told = f"the traceback is in {Path(log.name)}"
    except OSError as lost:
        told = f"the traceback could not be written ({lost.strerror}); its last line: {text.strip().splitlines()[-1]}"
    sys.stderr.write(f"error: a fault of omnirl itself: {type(fault).__name__}: {_first_line(fault)}; {told}\n")
    return Exit.BUG


def _first_line(fault: Exception) -> str:
    return (str(fault).splitlines() or [""])[0]


def _drop_unread_output() -> None:
    """Keep the interpreter from complaining at exit when the reader of a pipe has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
