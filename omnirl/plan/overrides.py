"""Recipe settings as verl's configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnirl.errors import InvalidInput, Problem
from omnirl.plan import hydra
from omnirl.plan.table import IMPLIED, IMPLIED_OWN, ONLINE, OVERLONG, OWN, TABLE, TEACHER, absolute, files
from omnirl.recipe import verl_keys
from omnirl.recipe.model import NO_ENGINE, NO_SCORER, SCORERS, Recipe
from omnirl.recipe.registry import Resolved

EXTRA = "after `--`"
"""The place of a word given after `--`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A recipe as verl takes it.

    Attributes:
        overrides: value by verl's dotted key, without Hydra's `+`.
        settings: value by name, for what verl has no key for.
        env: environment variables of the run.
        problems: warnings.
    """

    overrides: dict[str, Any]
    settings: dict[str, Any]
    env: dict[str, str]
    problems: tuple[Problem, ...] = ()


def render(resolved: Resolved, *, extra: Sequence[str] = ()) -> Rendered:
    """Turn a recipe into verl's overrides.

    Weakest first: the settings, the recipe's `[verl]` table, and the Hydra words in `extra`.

    Raises:
        InvalidInput: words that are not Hydra's, keys that verl does not have, values of a wrong type or that Hydra
            cannot take; with every problem.
    """
    recipe = resolved.recipe
    values = _settled(recipe)
    overrides = dict(_from_table(values)) | dict(_apart(recipe)) | dict(_teacher(recipe))
    if recipe.rollout.engine == NO_ENGINE:
        overrides = {key: value for key, value in overrides.items() if not key.startswith(ONLINE)}
    from_verl = dict(_spread(recipe.verl))
    from_extra, problems = _read(extra)
    problems += verl_keys.check(from_verl, lambda key: resolved.where(f"verl.{key}"))
    wrong = {problem.key for problem in problems}
    shadowing = [
        *_shadowed(from_verl, overrides, lambda key: resolved.where(f"verl.{key}"), "verl."),
        *_shadowed(from_extra, overrides, lambda _: EXTRA, ""),
    ]
    problems += [problem for problem in shadowing if problem.key not in wrong]
    overrides |= from_verl | from_extra
    problems += _unwritable(overrides)
    if any(problem.severity == "error" for problem in problems):
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise InvalidInput(f"verl cannot take these overrides ({count})", problems=tuple(problems))
    settings = {name: _at(values, setting) for setting, name in OWN.items()}
    settings["data.probe"] = files(recipe.data.probe)
    settings |= IMPLIED_OWN.get(recipe.algo.kind, {})
    settings = {name: value for name, value in _spread(settings) if value is not None}
    return Rendered(overrides, settings, dict(recipe.env), tuple(problems))


def hydra_words(overrides: Mapping[str, Any]) -> list[str]:
    """One `key=value` word a key; `+` where verl's configuration lacks the key, as Hydra wants it."""
    return [f"{'' if key in verl_keys.types() else '+'}{key}={hydra.write(value)}" for key, value in overrides.items()]


def _settled(recipe: Recipe) -> dict[str, Any]:
    """The recipe's values, with the ones that other settings decide."""
    values = recipe.model_dump(mode="json")
    values["hardware"]["nodes"] = recipe.train_nodes
    values["hardware"]["devices_per_node"] = recipe.train_devices_per_node
    if recipe.reward.manager is None:
        algo = recipe.algo
        values["reward"]["manager"] = (
            "dapo" if algo.kind == "dapo" and (algo.filter_groups or algo.overlong_buffer) else "naive"
        )
    return values


def _from_table(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for table in ("tune", "algo"):
        yield from IMPLIED[table, values[table]["kind"]].items()
    yield from _kl(values["algo"].get("kl_loss_coef"))
    yield from _reward(values["reward"]["scorer"])
    if values["rollout"]["validation"]["greedy"]:
        # verl's V1 trainer never reads do_sample: it is the temperature that makes validation greedy.
        yield "actor_rollout_ref.rollout.val_kwargs.temperature", 0.0
    for line in TABLE:
        value = _at(values, line.setting)
        if value is None or value == {}:
            continue
        for key in line.keys:
            target = key.format(engine=values["rollout"]["engine"])
            yield from _spread({target: line.turn(value) if line.turn else value})
        yield from line.also.items()
    yield from _overlong(values)


def _overlong(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """DAPO's penalty for responses near the limit: an own dictionary of verl's reward manager."""
    algo = values["algo"]
    if algo.get("overlong_buffer"):
        yield "reward.reward_kwargs.max_resp_len", values["data"]["max_response_tokens"]
        yield "reward.reward_kwargs.overlong_buffer_cfg.enable", True
        for key, setting in OVERLONG.items():
            yield f"reward.reward_kwargs.overlong_buffer_cfg.{key}", algo[setting]


def _apart(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """A rollout on devices of its own, to which weights are sent."""
    if recipe.rollout.devices:
        yield "actor_rollout_ref.hybrid_engine", False
        yield "actor_rollout_ref.rollout.nnodes", recipe.train_nodes
        yield "actor_rollout_ref.rollout.n_gpus_per_node", recipe.rollout.devices
        transfer = "actor_rollout_ref.rollout.checkpoint_engine"
        yield f"{transfer}.backend", "omnirl"
        yield f"{transfer}.custom_backend_module", "omnirl.engine.rollout.transfer"


def _teacher(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """A teacher has machines or devices of its own, and the engine that the student's rollout has."""
    if recipe.algo.kind == "opd":
        yield "distillation.n_gpus_per_node", recipe.teacher_devices_per_node
        yield f"{TEACHER}.inference.name", recipe.rollout.engine


def _kl(coefficient: float | None) -> Iterator[tuple[str, Any]]:
    if coefficient is None:
        return
    yield "actor_rollout_ref.actor.use_kl_loss", coefficient > 0
    if coefficient > 0:
        yield "actor_rollout_ref.actor.kl_loss_coef", coefficient


def _reward(scorer: str) -> Iterator[tuple[str, Any]]:
    if scorer == NO_SCORER:
        return
    function = "reward.custom_reward_function"
    if scorer in SCORERS:
        yield f"{function}.path", "pkg://omnirl.reward.score"
        yield f"{function}.name", "compute_score"
        yield f"{function}.reward_kwargs.scorer", scorer
    else:
        path, _, name = scorer.rpartition(":")
        yield f"{function}.path", absolute(path)
        yield f"{function}.name", name


def _at(values: Mapping[str, Any], setting: str) -> Any:
    found: Any = values
    for name in setting.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _spread(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dictionaries as dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _spread({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            yield key, value


def _read(extra: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for word in extra:
        try:
            key, value, is_new = hydra.parse(word)
        except ValueError as error:
            hint = "verl's overrides look like `trainer.save_freq=10`"
            problems.append(Problem("not-an-override", f"`{word}` {error}", where=EXTRA, hint=hint))
            continue
        spread = dict(_spread({key: value}))
        found |= spread
        for problem in verl_keys.check(spread, lambda _: EXTRA, table=""):
            if is_new and problem.code == "unknown-verl-key":
                message = f"{problem.message}; it is passed on because of the `+`"
                problem = Problem(problem.code, message, "warning", problem.key, problem.where, problem.hint)  # noqa: PLW2901
            problems.append(problem)
    return found, problems


def _shadowed(
    values: Mapping[str, Any], rendered: Mapping[str, Any], where: Callable[[str], str | None], table: str
) -> Iterator[Problem]:
    """A key that a setting gives as well: the rules never see the value that wins."""
    setting_of = {key: line.setting for line in TABLE for key in line.keys}
    for key, value in values.items():
        if key in setting_of and key in rendered and rendered[key] != value:
            setting = setting_of[key]
            message = f"takes the place of `{setting}`, so the recipe's rules do not see it"
            hint = f"use `--set '{setting} = ...'`"
            yield Problem("shadows-a-setting", message, "warning", table + key, where(key), hint)


def _unwritable(overrides: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in overrides.items():
        try:
            hydra.write(value)
        except ValueError as error:
            yield Problem("not-for-hydra", str(error), key=key)
