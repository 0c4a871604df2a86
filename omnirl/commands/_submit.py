"""`omnirl train --submit`: the run as a job of a Ray cluster, which goes on without this terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from omnirl import console
from omnirl.errors import ChildFailed, EnvironmentLacks, InvalidInput, UsageMistake

if TYPE_CHECKING:
    from omnirl.commands._training import Prepared, Wanted
    from omnirl.run.submit import Job

CHILD = "omnirl.engine.job"
_SUBMIT_S = 45.0
_API, _RAY = "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"
_NO_COMMAND = 127


def job_of(wanted: Wanted, prepared: Prepared | None, *, runs: Path, options: tuple[str, ...]) -> Job:
    """The command that does on the cluster's head what `wanted` asks for here.

    Args:
        prepared: what it resolves to here; None where a run goes on with its own recipe.
        runs: the folder of runs; the head must have it at the same path.
        options: further words, such as `--resume`.
    """
    from omnirl.recipe import registry
    from omnirl.recipe.search import search_path, shipped
    from omnirl.run import submit

    folders = [str(folder.absolute()) for folder in search_path() if folder.resolve() != shipped().resolve()]
    variables = {"OMNIRL_RECIPES": os.pathsep.join(folders)} if folders else {}
    sets = wanted.sets
    if prepared is not None:
        variables |= {name: text for name, text in wanted.variables.items() if name != "OUTPUT_DIR"}
        sets = submit.with_paths(sets, submit.absolute(prepared.resolved.recipe, Path.cwd()))
        resolved = registry.resolve(
            wanted.task, wanted.hardware, algo=wanted.algo, tune=wanted.tune, sets=sets, variables=variables
        )
        variables[submit.FINGERPRINT] = submit.fingerprint(resolved.recipe, wanted.words)
    chosen = (("--algo", wanted.algo), ("--tune", wanted.tune), ("--runs", str(runs.expanduser().absolute())))
    words = ["omnirl", "train", wanted.task, "--on", wanted.hardware]
    words += [word for option, value in chosen if value is not None for word in (option, value)]
    words += [word for text in sets for word in ("--set", text)]
    words += [*options, *(["--", *wanted.words] if wanted.words else [])]
    return submit.Job(tuple(words), variables)


def require_same(prepared: Prepared) -> None:
    """In a job: raises InvalidInput when the recipe resolves to another one than where the job was submitted."""
    from omnirl import machine
    from omnirl.run import submit

    known = os.environ.get(submit.FINGERPRINT)
    if known and known != submit.fingerprint(prepared.resolved.recipe, prepared.wanted.words):
        here = machine.version("omnirl")
        raise InvalidInput(
            f"the recipe resolves to other settings than where the job was submitted (omnirl {here} is here)",
            hint="install the same omnirl on the cluster's head, and unset variables such as MODEL_PATH there",
        )


def address_of(wanted: Wanted) -> str:
    """The cluster to submit to. Raises UsageMistake when none is named, EnvironmentLacks when nothing answers there."""
    from omnirl import machine

    named = (("--address", wanted.address), (_API, os.environ.get(_API)), (_RAY, os.environ.get(_RAY)))
    source, address = next(((source, value) for source, value in named if value), ("", ""))
    if address in ("", "local"):
        hint = "--address http://HEAD:8265"
        raise UsageMistake("`--submit` needs the address of a cluster", hint=hint, where="--address")
    problem = machine.ray_address(address, source, jobs=True)
    if problem:
        raise EnvironmentLacks(problem.message, hint=problem.hint)
    return address


def submit(wanted: Wanted, job: Job, *, wait: bool, as_json: bool) -> None:
    """Give a job to the cluster, and with `wait` follow it to its end.

    Raises:
        EnvironmentLacks: the cluster does not take it.
        ChildFailed: it was stopped, or its end is unknown.
        typer.Exit: with the job's own exit code, if that is not 0.
    """
    from omnirl import machine
    from omnirl.run.submit import new_id

    if find_spec("ray") is None:
        raise EnvironmentLacks("submitting needs `ray`", hint="pip install 'omnirl[train]'")
    address = address_of(wanted)
    request = {
        "address": address,
        "entrypoint": job.entrypoint,
        "id": new_id(wanted.task, wanted.hardware),
        "metadata": {"task": wanted.task, "hardware": wanted.hardware, "omnirl": str(machine.version("omnirl"))},
        "submit_s": _SUBMIT_S,
        "wait": wait,
    }
    with closing(_told(request)) as told:
        ended = _hand_over(told, address, job, wait=wait, as_json=as_json)
    if wait:
        _require_good(ended)


def _hand_over(told: Iterator[dict[str, Any]], address: str, job: Job, *, wait: bool, as_json: bool) -> dict[str, Any]:
    """Show what the child tells. Returns how the job ended, with the command that shows its log."""
    taken = next(told, {})
    if "job" not in taken:
        hint = "the job API answers at http://HEAD:8265 where `ray[default]` is installed"
        raise EnvironmentLacks(f"`{address}` does not take the job: {taken.get('fault', 'no answer')}", hint=hint)
    name, url = taken["job"], taken["address"]
    document = {"schema": "omnirl/job/1", "job": name, "address": url, "command": job.entrypoint}
    follow = f"ray job logs {name} --follow --address {url}"
    stop = f"ray job stop {name} --address {url}"
    if not as_json:
        console.line(f"job {name}")
    console.note(f"submitted to {url}; follow it with: {follow}\nstop it with: {stop}")
    try:
        ended = next(told, {}) if wait else {}
    except (KeyboardInterrupt, SystemExit):
        console.note(f"the job goes on; follow it with: {follow}\nstop it with: {stop}")
        raise
    if as_json:
        console.emit_json({**document, "status": ended.get("status"), "exit": ended.get("exit_code")})
    return {**ended, "log": follow.replace(" --follow", "")}


def _told(request: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
    """What the child tells, object by object; closing it ends the child, never the job."""
    environ = {name: value for name, value in os.environ.items() if name not in (_API, _RAY)}
    with tempfile.TemporaryDirectory(prefix="omnirl-job-") as folder:
        path = Path(folder) / "request.json"
        path.write_text(json.dumps(request), encoding="utf-8")
        child = subprocess.Popen(  # a session of its own: the terminal's Ctrl-C reaches omnirl alone
            [sys.executable, "-m", CHILD, str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environ,
            start_new_session=True,
            text=True,
        )
        assert child.stdout is not None
        try:
            for line in child.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def _require_good(ended: dict[str, Any]) -> None:
    if "status" not in ended:
        raise ChildFailed(f"the job can no longer be followed: {ended.get('fault', 'no answer')}", hint=ended["log"])
    code = ended["exit_code"]
    if ended["status"] == "SUCCEEDED":
        return
    if code == _NO_COMMAND:
        raise EnvironmentLacks(
            "the cluster's head has no command `omnirl`",
            hint="activate the environment that has omnirl before `ray start`",
        )
    if code is None:
        why = "was stopped" if ended["status"] == "STOPPED" else f"failed: {_last(ended['message'])}"
        raise ChildFailed(f"the job {why}", hint=ended["log"])
    raise typer.Exit(code if code >= 0 else 128 - code)


def _last(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
