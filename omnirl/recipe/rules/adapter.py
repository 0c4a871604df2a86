"""Rules on LoRA's filters, checked against the names of the Thinker's modules, and the size of the adapter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from omnirl.recipe import module_names
from omnirl.recipe.kinds import Lora
from omnirl.recipe.model import Recipe
from omnirl.recipe.module_names import TOWERS, Module
from omnirl.recipe.rules.finding import TINY, Finding, Rule
from omnirl.recipe.search import nearest

_TARGETS, _PARAMETERS, _EXCLUDE = "tune.target_modules", "tune.target_parameters", "model.exclude_modules"
_SAFE = 'model.exclude_modules = ".*visual.*|.*audio_tower.*"'
_SHOWN = 3


def size(recipe: Recipe) -> dict[str, Any] | None:
    """What an adapter is made of: adapted modules by part of the model, and its parameters.

    None without one, for the tiny checkpoint (whose shapes are others), and where a filter is no regular expression.
    """
    tune = recipe.tune
    if not isinstance(tune, Lora) or recipe.model.path == TINY or any(_broken(recipe)):
        return None
    hits = _hits(recipe, tune)
    modules: dict[str, int] = {}
    for module in hits:
        part = module.tower or "text"
        modules[part] = modules.get(part, 0) + 1
    shapes = [module.shapes["weight"] for module in hits if module.adaptable]
    count = sum(tune.rank * (shape[0] + prod(shape[1:])) for shape in shapes)
    # An adapter of stacked matrices has one pair of factors for each of them.
    stacked = [shape for *_, shape in _parameters(recipe, tune.target_parameters or ())]
    count += sum(prod(shape[:-2]) * tune.rank * sum(shape[-2:]) for shape in stacked)
    return {"modules": modules, "target_parameters": len(stacked), "parameters": count}


def _hits(recipe: Recipe, tune: Lora) -> list[Module]:
    exclude = recipe.model.exclude_modules
    return [
        module
        for module in module_names.modules()
        if module_names.targeted(module, tune.target_modules) and not module_names.excluded(module, exclude)
    ]


def _parameters(recipe: Recipe, endings: Sequence[str]) -> list[tuple[Module, str, tuple[int, ...]]]:
    exclude = recipe.model.exclude_modules
    return [
        (module, name, shape)
        for module in module_names.modules()
        if not module_names.excluded(module, exclude)
        for name, shape in module.shapes.items()
        if module_names.ends(f"{module.name}.{name}", endings)
    ]


def _broken(recipe: Recipe) -> Iterator[Finding]:
    tune = recipe.tune
    assert isinstance(tune, Lora)
    for key, pattern in ((_TARGETS, tune.target_modules), (_EXCLUDE, recipe.model.exclude_modules)):
        if isinstance(pattern, str):
            try:
                re.compile(pattern)
            except re.error as error:
                yield Finding("not-a-regular-expression", (key,), f"`{pattern}` is none: {error}")


def _filters(recipe: Recipe) -> Iterator[Finding]:
    tune = recipe.tune
    if not isinstance(tune, Lora):
        return
    broken = list(_broken(recipe))
    yield from broken
    if broken:
        return
    yield from _excluding(recipe)
    hits = _hits(recipe, tune)
    yield from _nothing(recipe, tune, hits)
    for tower, said in TOWERS.items():
        inside = [module for module in hits if module.tower == tower]
        if inside:
            names = ", ".join(f"`{module.name}`" for module in inside[:_SHOWN])
            message = (
                f"LoRA would reach {len(inside)} modules of {said}: {names}{' ...' if len(inside) > _SHOWN else ''}"
            )
            yield Finding("lora-in-tower", (_TARGETS, _EXCLUDE), message, f"try `{_SAFE}`")
    odd = {module.kind: module for module in hits if not module.adaptable}
    for kind, module in odd.items():
        message = f"`{module.name}` is a {kind}, for which there is no adapter"
        hint = "the experts are reached by `tune.target_parameters`; leave the router as it is"
        yield Finding("lora-unsupported", (_TARGETS, _EXCLUDE), message, hint)


def _excluding(recipe: Recipe) -> Iterator[Finding]:
    exclude = recipe.model.exclude_modules
    if exclude is None:
        return
    for pattern in [exclude] if isinstance(exclude, str) else exclude:
        part: Sequence[str] | str = exclude if isinstance(exclude, str) else [pattern]
        if not any(module_names.excluded(module, part) for module in module_names.modules()):
            how = "is the whole name of" if isinstance(exclude, str) else "is the end of the name of"
            message = f"`{pattern}` {how} no module, so it keeps nothing free of the adapter"
            yield Finding("exclude-matches-nothing", (_EXCLUDE,), message, f"try `{_SAFE}`")


def _nothing(recipe: Recipe, tune: Lora, hits: Sequence[Module]) -> Iterator[Finding]:
    """Targets that mean no module or parameter, each by itself."""
    known = sorted({module.name.rpartition(".")[2] for module in module_names.modules() if module.adaptable})
    targets = tune.target_modules
    if isinstance(targets, str):
        idle = [targets] if not hits else []
    else:
        idle = [name for name in targets if not any(module_names.ends(module.name, [name]) for module in hits)]
    for name in idle:
        close = nearest(name, [other for other in known if other not in targets])
        hint = f"did you mean `{close}`?" if close else "the Thinker's attention has q_proj, k_proj, v_proj, o_proj"
        message = f"`{name}` means no module that an adapter may have"
        yield Finding("lora-matches-nothing", (_TARGETS, _EXCLUDE), message, hint)
    for name in tune.target_parameters or ():
        if not _parameters(recipe, [name]):
            message = f"`{name}` is the end of no parameter's name"
            hint = "the experts have gate_up_proj and down_proj"
            yield Finding("lora-matches-nothing", (_PARAMETERS, _EXCLUDE), message, hint)


RULES: tuple[Rule, ...] = (_filters,)
