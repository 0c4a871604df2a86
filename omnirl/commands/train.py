"""`omnirl train`: train a task on some hardware, or go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _cluster, _completion, _curves, _recipe_variables, _submit, _training
from omnirl.commands.recipe import Algo, AsJson, Sets, Tune
from omnirl.errors import UsageMistake

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnirl.commands._training import Prepared, Wanted
    from omnirl.run.outcome import Outcome
    from omnirl.run.record import Run

EXAMPLES = """\b
Examples:
  omnirl data prepare toy --output data/toy && omnirl train toy --on cpu
  omnirl train gsm8k --on h800x4 --dry-run
  omnirl train gsm8k --on cpu --set 'train.steps = 3' -- trainer.logger=[file]
  omnirl train mmk12 --on ascend910c-x16x2 --runs /shared/runs --address HEAD:6379
  omnirl train mmk12 --on ascend910c-x16x2 --runs /shared/runs --address http://HEAD:8265 --submit
"""


def train(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=_completion.tasks)],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="After --: overrides for verl, as Hydra reads them."),
    ] = None,
    *,
    on: Annotated[str, typer.Option("--on", metavar="HARDWARE", help="Hardware.", autocompletion=_completion.hardware)],
    algo: Algo = None,
    tune: Tune = None,
    sets: Sets = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="The run's name.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run from its last complete checkpoint.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --resume: even if settings differ.")] = False,
    runs: _training.RunsFolder = Path("runs"),
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help="Ray cluster to train in: `HOST:6379`, `ray://HOST:10001`, `auto` for this machine's; `local` for a "
            "Ray of the run's own whatever RAY_ADDRESS says.",
        ),
    ] = None,
    submit: Annotated[
        bool, typer.Option("--submit", help="Hand the run over to the cluster as a job, and follow it.")
    ] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="With --submit: do not follow the job.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and show the plan; start nothing.")] = False,
    json: AsJson = False,
) -> None:
    """Train a task on some hardware, or go on with a run."""
    asked = context.get_parameter_source("runs")
    name, runs, variables = _recipe_variables.for_a_run(name, runs, asked_runs=asked is None or asked.name != "DEFAULT")
    wanted = _training.Wanted(task, on, algo, tune, tuple(sets or ()), tuple(words or ()), variables, address)
    if force and not resume:
        raise UsageMistake("`--force` goes with `--resume`")
    if no_wait and not submit:
        raise UsageMistake("`--no-wait` goes with `--submit`")
    if submit:
        options = _options(name, resume=resume, force=force, given=variables)
        _submit_run(wanted, runs, options, resume=resume, dry_run=dry_run, wait=not no_wait, as_json=json)
        return
    if resume:
        _resume(wanted, runs, name, force=force, dry_run=dry_run, as_json=json)
        return
    prepared = _training.prepare(wanted)
    _submit.require_same(prepared)
    inputs, machine = _training.preflight(prepared, runs)
    if dry_run:
        _show_plan(prepared, (*_training.as_warnings(inputs), *_training.as_warnings(machine)), as_json=json)
        return
    _training.require(prepared, inputs, machine)
    _cluster.check_nodes(prepared, runs)
    from omnirl.run import record

    with record.reserved(runs, name, stem=f"{task}-{on}-{prepared.resolved.recipe.algo.kind}") as run, run.lock():
        _training.record(prepared, run)
        outcome = _training.start(prepared, run)
    _show_outcome(outcome, as_json=json)


def _resume(wanted: Wanted, runs: Path, name: str | None, *, force: bool, dry_run: bool, as_json: bool) -> None:
    run = _run_to_resume(wanted, runs, name)
    with run.lock():
        prepared, changed = _training.prepare_resume(wanted, run, force=force)
        inputs, machine = _training.preflight(prepared, runs)
        if dry_run:
            _show_plan(prepared, (*_training.as_warnings(inputs), *_training.as_warnings(machine)), as_json=as_json)
            return
        _training.require(prepared, inputs, machine)
        _cluster.check_nodes(prepared, runs)
        for difference in changed:
            console.note(f"{difference.key}: was {difference.recorded}, now {difference.wanted}")
        outcome = _go_on(prepared, run, force=force)
    _show_outcome(outcome, as_json=as_json)


def _options(name: str | None, *, resume: bool, force: bool, given: Mapping[str, str]) -> tuple[str, ...]:
    """Words of a job's command beside the recipe's; a name from the environment stays there."""
    named = ("--name", name) if name is not None and "EXPERIMENT_NAME" not in given else ()
    return (*named, *(["--resume"] if resume else []), *(["--force"] if force else []))


def _submit_run(
    wanted: Wanted,
    runs: Path,
    options: tuple[str, ...],
    *,
    resume: bool,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Submit what can be right; the job looks at data, checkpoint and devices where they are, on the cluster."""
    from omnirl import machine

    prepared = None if resume else _training.prepare(wanted)
    if prepared is not None:
        engine, device = prepared.resolved.recipe.rollout.engine, prepared.resolved.recipe.hardware.device
        faults = (machine.rollout_engine(engine), machine.engine_packages(engine, device))
        planned = tuple(fault for fault in faults if fault and fault.code == machine.ENGINE_PLANNED)
        _training.require(prepared, (), () if dry_run else planned)
    job = _submit.job_of(wanted, prepared, runs=runs, options=options)
    if not dry_run:
        _submit.submit(wanted, job, wait=wait, as_json=as_json)
    elif as_json:
        console.emit_json({"schema": "omnirl/job/1", "job": None, "address": wanted.address, "command": job.entrypoint})
    else:
        console.line(job.entrypoint)
        console.note("dry run: nothing was submitted")


def _go_on(prepared: Prepared, run: Run, *, force: bool) -> Outcome:
    from omnirl.run import checkpoints, record
    from omnirl.run.outcome import summarize

    _training.clear_leftovers(run)
    saved, told = checkpoints.settle(run.checkpoints, force=force)
    if told:
        console.warn(told)
    total = _training.steps_total(prepared)
    if saved and total is not None and saved.step >= total:
        console.note(f"nothing to do: run {run.name} is at step {saved.step} of {total}")
        return summarize(run, seconds=0.0)
    console.note(f"going on from step {saved.step}" if saved else "no step was saved: starting from the first")
    _training.record(prepared, run, created=str(run.document().get("created") or record.created_now()))
    return _training.start(prepared, run, first_step=saved.step if saved else 0)


def _run_to_resume(wanted: Wanted, runs: Path, name: str | None) -> Run:
    from omnirl.run import record

    if name is not None:
        run = record.find(runs, name)
        known = run.document()
        if (known.get("task"), known.get("hardware")) != (wanted.task, wanted.hardware):
            raise UsageMistake(
                f"run `{name}` trains `{known.get('task')}` on `{known.get('hardware')}`",
                hint=_training.resume_command(run),
                where="--name",
            )
        return run
    for run in reversed(record.runs(runs)):
        known = run.document()
        if (known.get("task"), known.get("hardware")) == (wanted.task, wanted.hardware):
            return run
    raise UsageMistake(
        f"`{runs}` has no run of `{wanted.task}` on `{wanted.hardware}` to go on with",
        hint=f"omnirl train {wanted.task} --on {wanted.hardware}",
        where="--resume",
    )


def _show_plan(prepared: Prepared, problems: tuple[Any, ...], *, as_json: bool) -> None:
    """Print the plan; broken rules are raised after it, since a dry run that cannot run must not look well."""
    from omnirl.plan.overrides import hydra_words

    document = prepared.document
    known = document.get("problems", [])
    document = {**document, "problems": [*known, *(p.as_dict() for p in problems)]}
    if as_json:
        console.emit_json(document)
    else:
        batch = ", ".join(f"{key} {value}" for key, value in document["batch"].items() if value is not None)
        how = f"{document['algo']}, {document['tune']} ({document['evidence']})"
        console.line(f"{document['task']} on {document['hardware']}: {how}")
        console.line(f"batch: {batch}")
        for word in hydra_words(document["overrides"]):
            console.line(f"overrides  {word}")
        for heading in ("settings", "env"):
            for key, value in document[heading].items():
                console.line(f"{heading}  {key}={value}")
    _training.require(prepared, problems, ())
    if not as_json:
        console.note("dry run: nothing was started")


def _show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        console.emit_json(outcome.as_dict())
        return
    first, last = outcome.reward
    rows: list[tuple[str, Any, Any]] = [("reward", first, last)]
    rows += [(f"accuracy {source}", before, after) for source, (before, after) in sorted(outcome.accuracy().items())]
    console.table(f"Run {outcome.run.name}", ("", "first", "last"), rows)
    minimum = outcome.pearson_min
    console.line(
        f"steps {outcome.steps}, {outcome.seconds:.0f} s"
        + (f", least Pearson {minimum:.6f}" if minimum is not None else "")
    )
    console.line(f"checkpoint {outcome.checkpoint or 'none: train.save_every saved no step'}")
    _curves.show(outcome.curves)
