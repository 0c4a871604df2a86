"""From what the user asks for to a finished attempt; shared by `train` and `quickstart`."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _attempt, _recipe_variables
from omnirl.errors import ChildFailed, EnvironmentLacks, InvalidInput, Problem, UsageMistake

if TYPE_CHECKING:
    from omnirl.plan.overrides import Rendered
    from omnirl.recipe.registry import Resolved
    from omnirl.run.outcome import Outcome
    from omnirl.run.record import Attempt, Run
    from omnirl.run.resume import Difference

RunsFolder = Annotated[Path, typer.Option("--runs", envvar="OMNIRL_RUNS", metavar="DIR", help="Where runs are kept.")]

TINY = "tiny"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Wanted:
    """What is asked for; `words` are Hydra's, for verl; `variables` the documented ones that count, by name.

    `address` is the Ray cluster's; None for what RAY_ADDRESS says, `local` for a Ray of the run's own.
    """

    task: str
    hardware: str
    algo: str | None = None
    tune: str | None = None
    sets: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A recipe ready to run: resolved, checked by every rule, and rendered for verl."""

    wanted: Wanted
    resolved: Resolved
    rendered: Rendered
    document: dict[str, Any]
    """The document `omnirl/plan/1`."""
    problems: tuple[Problem, ...] = field(default=())


def prepare(wanted: Wanted) -> Prepared:
    """Resolve, check and render a recipe.

    Raises:
        InvalidInput: it cannot be resolved. Broken rules are in `problems`, for `require` to raise.
    """
    from omnirl.recipe import registry

    check_words(wanted.words)
    resolved = registry.resolve(
        wanted.task,
        wanted.hardware,
        algo=wanted.algo,
        tune=wanted.tune,
        sets=wanted.sets,
        variables=wanted.variables,
    )
    _recipe_variables.tell(resolved, wanted.variables)
    return render(wanted, resolved)


def check_words(words: Sequence[str], hint: str = "omnirl train --help") -> None:
    """Raises UsageMistake for what can be no word for verl."""
    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise UsageMistake(f"`{word}` is neither an option nor a `key=value` for verl", hint=hint)


def render(wanted: Wanted, resolved: Resolved) -> Prepared:
    """Check and render a resolved recipe."""
    from omnirl.plan import overrides
    from omnirl.plan.document import plan
    from omnirl.recipe import rules

    rendered = overrides.render(resolved, extra=wanted.words)
    found = (*rules.check(resolved), *rendered.problems)
    return Prepared(wanted, resolved, rendered, plan(resolved, wanted.words), found)


def preflight(prepared: Prepared, runs: Path) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Look at the data, the model and the machine. Returns problems of the input, and problems of the machine."""
    from omnirl.data.checks.preflight import check_files

    recipe = prepared.resolved.recipe
    data = check_files(
        recipe.data.train,
        recipe.data.val,
        recipe.data.probe,
        modalities=recipe.task.modalities,
        prompts_per_step=recipe.batch.prompts,
        scorer=recipe.reward.scorer if ":" not in recipe.reward.scorer else None,
    )
    # a scorer is tried on a row, which only makes sense where rows are what they should be
    scorer = () if data else _scorer(recipe.reward.scorer, recipe.reward.options, recipe.data.train)
    teacher = _model(recipe.algo.teacher.path, "algo.teacher.path") if recipe.algo.kind == "opd" else ()
    return (*data, *_model(recipe.model.path), *teacher, *scorer), machine_problems(prepared, runs)


def machine_problems(prepared: Prepared, runs: Path) -> tuple[Problem, ...]:
    """What of this machine stands in the way of the recipe."""
    from omnirl import machine

    recipe = prepared.resolved.recipe
    return machine.check(
        device=recipe.hardware.device,
        devices=recipe.hardware.devices_per_node,
        nodes=recipe.hardware.nodes,
        engine=recipe.rollout.engine,
        runs=runs,
        address=prepared.wanted.address,
    )


def require(prepared: Prepared, inputs: Sequence[Problem], machine: Sequence[Problem]) -> None:
    """Tell the warnings and raise every error at once, as one exception.

    Raises:
        InvalidInput: the recipe or an input is wrong.
        EnvironmentLacks: only the machine stands in the way, or it does so that mending the inputs would be in vain.
    """
    from omnirl.machine import FIRST

    found = (*prepared.problems, *inputs, *machine)
    errors = tuple(problem for problem in found if problem.severity == "error")
    for problem in found:
        if problem.severity == "warning":
            console.warn(problem.message + (f" ({problem.hint})" if problem.hint else ""))
    if not errors:
        return
    lacking = tuple(problem for problem in errors if problem in machine)
    if any(problem.code in FIRST for problem in lacking) and not any(p in errors for p in prepared.problems):
        errors = lacking
    kind = EnvironmentLacks if all(problem in machine for problem in errors) else InvalidInput
    if len(errors) == 1:
        only = errors[0]
        named = f"`{only.key}`: {only.message}" if only.key else only.message
        raise kind(named, hint=only.hint, where=only.where)
    hint = _prepare_hint(prepared, errors) or next((problem.hint for problem in errors if problem.hint), None)
    what = f"`{prepared.wanted.task}` cannot be trained on `{prepared.wanted.hardware}` ({len(errors)} problems)"
    raise kind(what, problems=errors, hint=hint)


def steps_total(prepared: Prepared) -> int | None:
    """The step that a run of this recipe ends with."""
    from omnirl.data import store

    recipe = prepared.resolved.recipe
    rows = sum(store.inspect(Path(name).expanduser()).rows for name in recipe.data.train)
    possible = rows // recipe.batch.prompts * recipe.train.epochs
    return min(possible, recipe.train.steps) if recipe.train.steps else possible


def record(prepared: Prepared, run: Run, *, created: str | None = None) -> None:
    """Write run.json, recipe.json and overrides.txt of a run about to start; `created` is kept on a resume."""
    from omnirl import machine
    from omnirl.plan import overrides
    from omnirl.run import provenance
    from omnirl.run.record import created_now

    recipe = prepared.resolved.recipe
    document = {
        "task": prepared.resolved.task,
        "hardware": prepared.resolved.hardware,
        "algo": recipe.algo.kind,
        "tune": recipe.tune.kind,
        "created": created or created_now(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "words": list(prepared.wanted.words),
        "variables": dict(prepared.wanted.variables),
        "address": machine.cluster(prepared.wanted.address, os.environ),
        "seed": recipe.train.seed,
        "steps_total": steps_total(prepared),
        "versions": machine.versions(),
        "git": provenance.git_state(Path.cwd()),
        "data": provenance.hashes([*recipe.data.train, *recipe.data.val, *recipe.data.probe]),
    }
    run.write(document, prepared.resolved.as_json(), overrides.hydra_words(prepared.rendered.overrides))


def prepare_resume(wanted: Wanted, run: Run, *, force: bool) -> tuple[Prepared, list[Difference]]:
    """Render a run's recorded recipe with what `wanted` sets anew. Returns it with what differs from the record.

    Raises:
        UsageMistake: another algorithm or tuning is asked for.
        InvalidInput: settings or data differ that may not, and `force` is not set.
    """
    from omnirl.run import provenance, resume

    known = run.document()
    for option, asked in (("algo", wanted.algo), ("tune", wanted.tune)):
        if asked not in (None, known.get(option)):
            raise UsageMistake(
                f"run `{run.name}` was made with `{known.get(option)}`, not `{asked}`",
                hint=f"start a new run, or: {resume_command(run)}",
                where=f"--{option}",
            )
    recorded = run.recipe()
    resolved = resume.recorded_recipe(recorded, wanted.sets)
    words = (*(str(word) for word in known.get("words") or ()), *wanted.words)
    _recipe_variables.tell_ignored(wanted.variables, "a run goes on with its own recipe")
    kept = known.get("variables")
    address = wanted.address or os.environ.get("RAY_ADDRESS") or known.get("address")
    variables = kept if isinstance(kept, dict) else {}
    prepared = render(replace(wanted, words=words, variables=variables, address=address), resolved)
    found = resume.differences(recorded["values"], resolved.recipe.model_dump(mode="json"))
    data = resolved.recipe.data
    there = [name for name in (*data.train, *data.val, *data.probe) if Path(name).expanduser().is_file()]
    found += resume.changed_data(known.get("data") or {}, provenance.hashes(there))
    found += [resume.Difference("words after --", known.get("words"), list(words))] if wanted.words else []
    if not force:
        resume.require_allowed(found, run=run.name)
    return prepared, found


def clear_leftovers(run: Run) -> None:
    """Stop what an attempt left running when omnirl itself was killed under it."""
    from omnirl.run import launch

    for attempt in run.attempts()[-1:]:
        if attempt.tag and not (attempt.path / "exit.json").exists():
            stopped = launch.stop_leftovers(attempt.tag, attempt.path)
            if stopped.met:
                console.note(f"stopped {stopped.met} processes that attempt {attempt.number} had left behind")


def start(prepared: Prepared, run: Run, *, first_step: int = 0, command: Sequence[str] | None = None) -> Outcome:
    """Launch the next attempt of a run whose files are written, show its progress, and see it through.

    Args:
        first_step: the step of the checkpoint that the attempt goes on from.
        command: the training program; the engine when not given.

    Raises:
        ChildFailed: the training program failed, or ended well without a single step.
        KeyboardInterrupt, SystemExit: the user stopped it; the attempt is marked and can be resumed.
    """
    from omnirl.run import launch, metrics
    from omnirl.run.outcome import summarize
    from omnirl.run.progress import Watch

    tag = launch.new_tag()
    attempt = run.new_attempt(tag)
    watch = Watch(attempt, run.document().get("steps_total"), first_step)
    began = time.monotonic()
    console.note(f"run {run.name}, attempt {attempt.number}: log in {_shown(attempt.log)}")

    def last_step() -> int:
        return metrics.last_trained(metrics.read([attempt.metrics]))

    try:
        program = command or launch.engine_command(run.path)
        ended = _attempt.follow(
            attempt, program, env=prepared.rendered.env, address=prepared.wanted.address, tag=tag, watch=watch
        )
    except (KeyboardInterrupt, SystemExit) as stopped:
        code = stopped.code if isinstance(stopped, SystemExit) and isinstance(stopped.code, int) else 130
        step = last_step() or first_step
        attempt.finish("interrupted", code, step=step, seconds=time.monotonic() - began)
        console.note(f"interrupted at step {step}; go on with: {resume_command(run)}")
        raise
    step = last_step()
    seconds = time.monotonic() - began
    if ended.code == 0 and step:
        attempt.finish("done", 0, step=step, seconds=seconds)
        if watch.steps_total and step < watch.steps_total:
            console.warn(f"the training program ended well, but at step {step} of {watch.steps_total}")
        return summarize(run, seconds=seconds)
    attempt.finish("failed", ended.code, step=step or first_step, seconds=seconds)
    raise _failed(run, attempt, ended.code, step or first_step)


def resume_command(run: Run) -> str:
    """The command that goes on with a run."""
    known = run.document()
    runs = "" if run.path.parent.resolve() == default_runs().resolve() else f" --runs {_shown(run.path.parent)}"
    return f"omnirl train {known.get('task')} --on {known.get('hardware')} --resume --name {run.name}{runs}"


def default_runs() -> Path:
    """Where runs are made when `--runs` is not given."""
    return Path(os.environ.get("OMNIRL_RUNS") or "runs")


def as_warnings(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The same problems, none of which forbids anything: for a dry run."""
    return tuple(replace(problem, severity="warning") for problem in problems)


def _failed(run: Run, attempt: Attempt, code: int, step: int) -> ChildFailed:
    message, hint = _attempt.why_failed(attempt, code, did="ran 0 steps")
    return ChildFailed(f"{message} (after step {step}; log: {_shown(attempt.log)})", hint=hint or resume_command(run))


def _prepare_hint(prepared: Prepared, errors: Sequence[Problem]) -> str | None:
    """How to make the data files when it is they that are missing."""
    from omnirl.data.sources import SOURCES

    data = prepared.resolved.recipe.data
    source = SOURCES.get(data.source)
    absent = [name for name in data.train if not Path(name).expanduser().exists()]
    if source is None or not absent or not any(problem.key == "data.train" for problem in errors):
        return None
    given = " --input DIR" if source.needs_input else ""
    return f"omnirl data prepare {source.name}{given} --output {Path(absent[0]).parent}"


def _model(path: str, key: str = "model.path") -> tuple[Problem, ...]:
    if path == TINY:
        return ()
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / "config.json").is_file():
            return ()
        return (Problem("model-incomplete", f"`{path}` has no config.json", key=key, hint="give a checkpoint folder"),)
    if _HUB_NAME.fullmatch(path) and _in_hub_cache(path):
        return ()
    hint = f"--set '{key} = \"DIR\"'"
    if _HUB_NAME.fullmatch(path):
        hint = f"hf download {path}"
    return (Problem("model-absent", f"there is no model folder `{path}`", key=key, hint=hint),)


def _in_hub_cache(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    return any(cache.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"))


def _scorer(scorer: str, options: Mapping[str, Any], train: Sequence[str]) -> tuple[Problem, ...]:
    """What is wrong with the scorer: its options, or, tried on the first row in a fresh process, the user's own."""
    from omnirl.data import store
    from omnirl.reward import custom, score
    from omnirl.reward.scorers import parse_scorer

    try:
        if scorer in score.SCORERS:
            score.check_options(scorer, options)
        elif scorer != "none":
            path, function = parse_scorer(scorer)
            rows = [Path(name).expanduser() for name in train[:1] if Path(name).expanduser().is_file()]
            trial = next(iter(store.read_rows(rows[0])), None) if rows else None
            custom.check_scorer(Path(path), str(function), options=options, trial=trial)
    except InvalidInput as error:
        return (Problem("scorer-unusable", error.message, key="reward.scorer", where=error.where, hint=error.hint),)
    return ()


def _shown(path: Path) -> str:
    """A path as short as it can be given from here."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
