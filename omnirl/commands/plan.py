"""`omnirl plan`: what a run would do, and whether it fits, without a device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from omnirl import console
from omnirl.commands import _completion, _recipe_variables, _training
from omnirl.commands.recipe import Algo, AsJson, Sets, Tune
from omnirl.errors import InvalidInput, NegativeAnswer

if TYPE_CHECKING:
    from omnirl.recipe.model import Recipe

EXAMPLES = """\b
Examples:
  omnirl plan gsm8k --on h800x4
  omnirl plan avqa --on h800x4 --set 'actor.entropy_chunk_tokens = 2048'
  omnirl plan nextqa --on ascend910c-x16 --json
"""

_BAR = 60
_LETTERS = {
    "weights": "w", "adapter": "r", "gathered_layers": "g", "gradients": "d", "gradient_buffers": "f", "optimizer": "o",
    "optimizer_step": "s", "activations": "a", "logits": "l", "entropy": "e", "media": "m", "expert_updates": "u",
    "graphs": "h", "kv_cache": "k", "teacher": "p", "training": "t", "transfer": "x", "contexts": "c", "beside": "b",
}  # fmt: skip
_SAID = {
    "actor": "training",
    "rollout": "generating",
    "teacher": "teaching",
}


def plan(
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
    json: AsJson = False,
) -> None:
    """Show what a run would do, what it takes, and whether it fits; the hardware need not be here."""
    variables = _recipe_variables.given()
    prepared = _training.prepare(
        _training.Wanted(task, on, algo, tune, tuple(sets or ()), tuple(words or ()), variables)
    )
    recipe = prepared.resolved.recipe
    document = prepared.document
    rows, unread = _rows(recipe)
    if rows is not None:
        from omnirl.plan import plan as plan_of

        document = plan_of(prepared.resolved, prepared.wanted.words, rows=rows)
    if json:
        console.emit_json(document)
    else:
        _show(document, recipe, unread)
    _training.require(prepared, (), ())
    _require_fit(document, f"`{task}` does not fit on `{on}`")


def _rows(recipe: Recipe) -> tuple[int | None, str]:
    """Rows of the training files, and why there is no such number."""
    paths = [Path(name).expanduser() for name in recipe.data.train]
    absent = [str(path) for path in paths if not path.exists()]
    if absent:
        return None, f"no data yet: {', '.join(absent)}"
    from omnirl.data import store

    try:
        return sum(store.inspect(path, required=()).rows for path in paths), ""
    except InvalidInput as error:
        return None, error.message


def _require_fit(document: Mapping[str, Any], what: str) -> None:
    from omnirl.plan.fit import CODE

    for problem in document["problems"]:
        if problem["code"] == CODE:
            raise NegativeAnswer(f"{what}: {problem['message']}", hint=f"try {problem['hint']}")


def _show(document: Mapping[str, Any], recipe: Recipe, unread: str) -> None:
    how = f"{document['algo']}, {document['tune']} ({document['evidence']})"
    console.line(f"{document['task']} on {document['hardware']}: {how}, {recipe.hardware.summary}")
    console.line()
    shown = [(part["part"], part["how"] if part["on"] else "off") for part in document["algorithm"]]
    console.table("Algorithm", ("part", "how"), shown)
    _show_placement(document["placement"], recipe)
    _show_steps(document["batch"], document["schedule"], unread)
    _show_environment(document["env"], document["placement"]["scripts"])
    if document["disk"]:
        _show_disk(document["disk"], recipe)
    if document["memory"]:
        _show_memory(document["memory"])
    problems = document["problems"]
    if problems:
        console.line()
        rows = [(p["severity"], p["where"], p["key"], p["message"], p["hint"], p["code"]) for p in problems]
        console.table("Problems", ("severity", "where", "setting", "problem", "hint", "code"), rows)


def _show_placement(placement: Mapping[str, Any], recipe: Recipe) -> None:
    console.line()
    rows = []
    for node in placement["nodes"]:
        copies = node["copies"]
        spans = [_span([copy[0], copy[-1]], "-") for copy in copies]
        first = copies[0][0] if copies else 0
        devices = _span([first, first + node["devices"] - 1], "-")
        rows.append((node["node"], node["role"], devices, len(copies) or None, " ".join(spans) or None))
    console.table("Placement", ("machine", "role", "devices", "copies", "devices of a copy"), rows)
    console.line(f"parameters in {placement['shards']} shards ({placement['sharding']}), model {recipe.model.path}")
    if recipe.hardware.nodes > 1:
        console.line(f"start: `ray start` on {recipe.hardware.nodes} machines, then `omnirl train --address HEAD:6379`")


def _show_steps(batch: Mapping[str, Any], schedule: Mapping[str, Any], unread: str) -> None:
    console.line()
    prompts, group, devices = batch["prompts"], batch["group_size"], batch["devices"]
    limit = batch["max_tokens_per_device"]
    share, update = batch["sequences_per_device"], batch["sequences_per_update_and_device"]
    longest = batch["max_tokens_per_sequence"]
    rows: list[tuple[str, Any, str]] = [
        ("sequences a step", batch["sequences"], f"{prompts} prompts x {group}"),
        ("sequences a device", share, f"{batch['sequences']} / {devices} devices"),
        ("updates a step", schedule["updates_per_step"], f"{prompts} prompts / {batch['mini_prompts']} an update"),
        ("sequences an update and device", update, f"{batch['mini_prompts']} x {group} / {devices}"),
        (
            "passes an update",
            _span(schedule["passes_per_update"]),
            f"up to {limit} tokens a pass, {longest} the longest sequence"
            if limit
            else f"{batch['micro_sequences']} sequences a pass of up to {longest} tokens",
        ),
    ]
    if schedule["log_prob_passes"]:
        rows.append(("passes for log-probabilities", _span(schedule["log_prob_passes"]), "of each device, a step"))
    if copies := batch["teacher_copies"]:
        rows.append(("sequences a teacher's copy", batch["sequences"] // copies, f"{batch['sequences']} / {copies}"))
    per_epoch = schedule["steps_per_epoch"]
    rows += [
        ("steps an epoch", per_epoch, f"{schedule['rows']} rows / {prompts}" if per_epoch is not None else unread),
        ("updates an epoch", schedule["updates_per_epoch"], ""),
        ("steps", schedule["steps"], f"up to {batch['epochs']} epochs"),
        ("updates", schedule["updates"], ""),
        ("validations", schedule["validations"], ""),
    ]
    console.table("Steps", ("what", "count", "from"), [row for row in rows if row[1] is not None or row[2]])


def _span(pair: list[int], between: str = " to ") -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]}{between}{pair[1]}"


def _show_environment(env: Mapping[str, str], scripts: list[str]) -> None:
    if env or scripts:
        console.line()
    for script in scripts:
        console.line(f"before: source {script}")
    for name, value in env.items():
        console.line(f"environment: {name}={value}")


def _show_disk(disk: Mapping[str, Any], recipe: Recipe) -> None:
    console.line()
    count = "?" if disk["checkpoints"] is None else disk["checkpoints"]
    keep = recipe.train.keep_checkpoints
    total = "" if disk["checkpoints_gb"] is None else f" = {disk['checkpoints_gb']:.4g} GB"
    parts = f"weights {disk['weights_gb']:.4g}, optimizer {disk['optimizer_gb']:.3g}"
    console.line(f"checkpoint: {disk['checkpoint_gb']:.4g} GB ({parts})")
    kept = "all kept" if keep is None else f"{keep} kept"
    console.line(f"checkpoints: {count} ({kept}, every {recipe.train.save_every} steps){total}")
    teacher = f", and {disk['teacher_gb']:.4g} GB for the teacher" if disk["teacher_gb"] else ""
    console.line(f"model: {disk['model_gb']:.4g} GB to load{teacher}")


def _show_memory(memory: Mapping[str, Any]) -> None:
    console.line()
    limit = memory["limit_gib"]
    sides: dict[str, dict[str, float]] = {}
    for name, size in memory["components"].items():
        side, _, component = name.partition(".")
        sides.setdefault(side, {})[component] = size
    sides["actor"]["beside"] = memory["beside_actor_gib"]
    rows = [
        (_SAID[side], component, f"{size:.2f}")
        for side, components in sides.items()
        for component, size in components.items()
        if size >= 0.005
    ]
    console.table("Memory of a device", ("while", "component", "GiB"), rows)
    console.line(
        f"{memory['model']}; training peaks in `{memory['actor_stage']}`, at {memory['actor_peak_gib']:.1f} GiB"
    )
    console.line()
    scale = max([*(sum(parts.values()) for parts in sides.values()), limit or 0.0])
    for side, parts in sides.items():
        total = sum(parts.values())
        of = f" of {limit:g}" if limit else ""
        console.line(f"{_SAID[side]:<10} [{_bar(parts, limit or scale, scale)}] {total:.1f}{of} GiB")
    used = {name for parts in sides.values() for name, size in parts.items() if size >= 0.005}
    console.line(" ".join(f"{letter}={name}" for name, letter in _LETTERS.items() if name in used))
    if memory["kv_cache_sequences"] is not None:
        taught = memory["teacher_kv_cache_sequences"]
        teacher = f"; {taught:g} a copy of the teacher" if taught is not None else ""
        console.line(f"key-value cache: {memory['kv_cache_sequences']:g} sequences of the full length, a copy{teacher}")
    host = ", ".join(f"{name} {size:.1f}" for name, size in memory["host"].items() if size >= 0.05)
    console.line(f"host memory of a machine: {memory['host_gib']:.1f} GiB ({host})")


def _bar(parts: Mapping[str, float], limit: float, scale: float) -> str:
    """Components as runs of their letters; a dot for free memory, `!` for what is beyond the device."""
    if scale <= 0:
        return "." * _BAR
    drawn, end = "", 0.0
    for name, size in parts.items():
        end += size
        drawn += _LETTERS[name] * (round(end / scale * _BAR) - len(drawn))
    edge = round(limit / scale * _BAR)
    over = "!" * max(0, len(drawn) - edge)
    return drawn[: min(edge, len(drawn))] + over + "." * max(0, edge - len(drawn))
