"""Rules on an algorithm's own settings, and on what it needs of the data, the rollout and a teacher."""

from __future__ import annotations

from collections.abc import Iterator

from omnirl.recipe.kinds import Dapo, Opd, PolicyLoss
from omnirl.recipe.model import NO_ENGINE, NO_SCORER, Recipe
from omnirl.recipe.rules.finding import Finding, Rule, attempt, neighbours
from omnirl.recipe.rules.placement import fits_heads

_PPO_SIZED = 0.01
"""Clip widths above this belong to a ratio of single tokens, below it to GSPO's ratio of whole sequences."""


def _clips(recipe: Recipe) -> Iterator[Finding]:
    algo = recipe.algo
    if not isinstance(algo, PolicyLoss):
        return
    keys = ("algo.clip_high", "algo.clip_low", "algo.kind")
    widths = f"{algo.clip_low:g} / {algo.clip_high:g}"
    if not isinstance(algo, Dapo) and max(algo.clip_low, algo.clip_high) > _PPO_SIZED:
        message = (
            f"clips of {widths} are sized for single tokens; GSPO's ratio of whole sequences hardly ever reaches them"
        )
        yield Finding(
            "clip-for-tokens",
            keys,
            message,
            "GSPO's own are `algo.clip_low = 3e-4` and `algo.clip_high = 4e-4`",
            "warning",
        )
    if isinstance(algo, Dapo) and max(algo.clip_low, algo.clip_high) < _PPO_SIZED:
        message = (
            f"clips of {widths} are sized for GSPO's whole sequences; DAPO's single tokens would nearly all be clipped"
        )
        yield Finding(
            "clip-for-sequences",
            keys,
            message,
            "DAPO's own are `algo.clip_low = 0.2` and `algo.clip_high = 0.28`",
            "warning",
        )


def _rows(recipe: Recipe) -> Iterator[Finding]:
    kind, rows = recipe.algo.kind, recipe.task.rows
    offline = kind == "dpo"
    if offline != (rows == "preferences"):
        # What else does not go together follows from this.
        message = (
            f"`{kind}` learns from {'preferences' if offline else 'questions'}, and a row of this data is one of {rows}"
        )
        yield Finding("rows-for-algo", ("algo.kind", "task.rows"), message, "omnirl recipe list")
        return
    engine, scorer = recipe.rollout.engine, recipe.reward.scorer
    if offline != (engine == NO_ENGINE):
        said = f"generates nothing, so `{engine}` has nothing to do" if offline else "needs responses to learn from"
        hint = f'try `rollout.engine = "{NO_ENGINE if offline else "vllm_omni"}"`'
        yield Finding("rollout-for-algo", ("rollout.engine", "algo.kind"), f"`{kind}` {said}", hint)
    if offline != (scorer == NO_SCORER):
        said = f"scores nothing, so `{scorer}` has nothing to do" if offline else "needs scores to learn from"
        hint = f'try `reward.scorer = "{NO_SCORER if offline else "choice"}"`'
        yield Finding("scorer-for-algo", ("reward.scorer", "algo.kind"), f"`{kind}` {said}", hint)


def _overlong(recipe: Recipe) -> Iterator[Finding]:
    algo = recipe.algo
    if not isinstance(algo, Dapo):
        return
    settings = [f"overlong_{name}" for name in ("tokens", "penalty", "log")]
    changed = [name for name in settings if getattr(algo, name) != Dapo.model_fields[name].default]
    if changed and not algo.overlong_buffer:
        message = f"`algo.{changed[0]}` does nothing without `algo.overlong_buffer`"
        idle = (f"algo.{changed[0]}", "algo.overlong_buffer")
        yield Finding("overlong-idle", idle, message, "try `algo.overlong_buffer = true`")
    longest, stretch = recipe.data.max_response_tokens, algo.overlong_tokens
    if algo.overlong_buffer and stretch >= longest:
        message = f"a penalty over the last {stretch} tokens leaves none of the {longest} of a response free of it"
        keys = ("algo.overlong_tokens", "algo.overlong_buffer", "data.max_response_tokens")
        yield Finding("overlong-buffer", keys, message, attempt(keys[0], [n for n in [longest // 4] if n]))
    manager = recipe.reward.manager
    if algo.overlong_buffer and manager not in (None, "dapo"):
        message = f"verl's manager `{manager}` knows no penalty for overlong responses"
        hint = "leave `reward.manager` out, or set it to `dapo`"
        yield Finding("overlong-manager", ("reward.manager", "algo.overlong_buffer"), message, hint)


def _teacher(recipe: Recipe) -> Iterator[Finding]:
    algo, hardware = recipe.algo, recipe.hardware
    if not isinstance(algo, Opd):
        return
    teacher = algo.teacher
    at = "algo.teacher"
    per_node = hardware.devices_per_node
    if teacher.devices is not None and teacher.shares_devices:
        message = f"a teacher on the devices that train has none of its own, not {teacher.devices}"
        both = (f"{at}.shares_devices", f"{at}.devices")
        yield Finding("teacher-devices", both, message, f"leave out one of `{at}.shares_devices` and `{at}.devices`")
    elif teacher.shares_devices or teacher.devices is not None:
        yield from _shared(teacher.nodes, teacher.devices or 0, hardware.nodes, per_node)
    elif teacher.nodes >= hardware.nodes:
        message = f"{teacher.nodes} of {hardware.nodes} machines for the teacher leaves none for the student"
        fits = [hardware.nodes - 1] if hardware.nodes > 1 else []
        alone = f"it takes hardware with {teacher.nodes + 1} machines"
        shared = f"`{at}.devices = {per_node // 2}`" if per_node > 1 else "more devices"
        hint = attempt(f"{at}.nodes", fits) or f"{alone}, or {shared} on this"
        yield Finding("teacher-needs-nodes", (f"{at}.nodes", "hardware.nodes"), message, hint)
    width, own = teacher.tensor_parallel, recipe.teacher_devices_per_node
    if own % width or not fits_heads(width):
        message = f"the teacher cannot be split {width} ways on {own} devices in a node"
        valid = neighbours(width, lambda n: own % n == 0 and fits_heads(n), own)
        key = f"{at}.tensor_parallel"
        told = (key, f"{at}.devices", "hardware.devices_per_node")
        yield Finding("teacher-tensor-parallel", told, message, attempt(key, valid))
    prompt = recipe.rollout.prompt_tokens or recipe.data.max_prompt_tokens
    response = recipe.data.max_response_tokens
    least = prompt + response + 1
    if teacher.max_tokens < least:
        message = f"the teacher reads {prompt} prompt + {response} response and writes 1: {least} tokens"
        keys = (f"{at}.max_tokens", "data.max_prompt_tokens", "data.max_response_tokens", "rollout.prompt_tokens")
        yield Finding("teacher-context", keys, f"{message}, not {teacher.max_tokens}", attempt(keys[0], [least]))
    if teacher.path == recipe.model.path:
        message = f"teacher and student are both `{teacher.path}`: there is nothing to learn"
        hint = 'name the student\'s checkpoint: `model.path = "DIR"`'
        yield Finding("teacher-is-student", (f"{at}.path", "model.path"), message, hint)


def _shared(nodes: int, devices: int, machines: int, per_node: int) -> Iterator[Finding]:
    """A teacher that shares every machine with the student; no `devices` of its own where it shares those too."""
    at = "algo.teacher"
    if devices >= per_node:
        message = f"{devices} of {per_node} devices for the teacher leaves none for the student"
        fits = attempt(f"{at}.devices", [per_node - 1] if per_node > 1 else [])
        keys = (f"{at}.devices", "hardware.devices_per_node")
        yield Finding("teacher-needs-devices", keys, message, fits or "it takes 2 devices in a machine")
    if nodes != machines:
        key = f"{at}.devices" if devices else f"{at}.shares_devices"
        message = f"with `{key}` the teacher is on all of the {machines} machines, not on {nodes}"
        hint = attempt(f"{at}.nodes", [machines])
        yield Finding("teacher-needs-nodes", (f"{at}.nodes", key, "hardware.nodes"), message, hint)


def _divergence(recipe: Recipe) -> Iterator[Finding]:
    algo = recipe.algo
    if not isinstance(algo, Opd):
        return
    keys = ("algo.divergence", "algo.policy_gradient")
    if algo.divergence in ("kl", "k1") and not algo.policy_gradient:
        message = f"the gradient of `{algo.divergence}` does not depend on the teacher"
        hint = 'try `algo.policy_gradient = true` or `algo.divergence = "k3"`'
        yield Finding("divergence-without-gradient", keys, message, hint)
    engine = recipe.rollout.engine
    if algo.divergence == "forward_kl_topk" and engine in ("vllm_omni", "hf"):
        message = f"verl asks only `vllm` for a teacher's likeliest tokens, not `{engine}`"
        yield Finding("divergence-for-vllm", (keys[0], "rollout.engine"), message, 'try `algo.divergence = "kl"`')


RULES: tuple[Rule, ...] = (_clips, _rows, _overlong, _teacher, _divergence)
