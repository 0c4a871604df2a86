"""A program as bad as training can be: it forks daemons that detach, ignore SIGTERM or drop their environment.

usage: stand_in.py FOLDER WORD...
    daemon        fork a process that detaches from session and parent
    stubborn      the same, ignoring SIGTERM
    bare          the same, with an empty environment
    deaf          ignore SIGTERM from now on
    mortal=PID    die with the parent PID
    metrics=N     write N steps to $VERL_FILE_LOGGER_PATH
    say=TEXT      print TEXT
    exit=CODE     leave
    wait          sleep until stopped
Each process writes its id as FOLDER/<pid>.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def _live(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    while True:
        time.sleep(60)


def _detach(folder: Path, word: str) -> None:
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if word == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if word == "bare":
        os.execve(sys.executable, [sys.executable, __file__, str(folder), "live"], {})
    _live(folder)


def main(folder: Path, words: list[str]) -> None:
    for word in words:
        name, _, value = word.partition("=")
        if name in ("daemon", "stubborn", "bare"):
            before = len(list(folder.iterdir()))
            _detach(folder, name)
            while len(list(folder.iterdir())) == before:
                time.sleep(0.01)
        elif name == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif name == "mortal":
            from omnirl.run.processes import die_with_parent

            die_with_parent(os.getppid())
        elif name == "metrics":
            with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("w") as file:
                for step in range(1, int(value) + 1):
                    data = {
                        "critic/score/mean": step / 10,
                        "actor/pg_loss": 0.0,
                        "training/rollout_actor_probs_pearson_corr": 1.0,
                        "val-core/toy/image/acc/mean@1": step / 10,
                    }
                    file.write(json.dumps({"step": step, "data": data}) + "\n")
        elif name == "say":
            sys.stdout.write(f"{value}\n")
        elif name == "exit":
            sys.exit(int(value))
        elif name in ("wait", "live"):
            _live(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
