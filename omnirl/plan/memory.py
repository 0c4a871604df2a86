"""How much memory a run takes: on each device by component, and in each machine.

The estimate is for the worst pass: packed up to `batch.max_tokens_per_device`, with media in its prompts' whole share.
Nothing is scaled to fit a task. What is not a size of a tensor was measured on H200s (`activations.py`, `training.py`),
and the two constants for what no formula gives are `ENTROPY_COPIES` and `CONTEXT_BYTES`.

Against the published peaks of torch's allocator in the actor, 4 x H800 80 GB, LoRA of rank 32:

| task  | published | estimated | error |
| gsm8k | 43        | 44.5      | +3 %  |
| mmk12 | 59        | 59.4      | +1 %  |
| avqa  | 46        | 44.6      | -3 %  |

Weak: the entropy's share assumes the plain function; the published runs' packing is unknown, and short answers leave
passes unfilled; what PEFT's expert adapters take, NPUs, fragmentation, the engine's own passes over media, and batches
in host memory are not measured or left out. A real peak may be 15 % higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnirl.plan import generation, training
from omnirl.plan.architecture import Architecture
from omnirl.plan.architecture import of as architecture_of
from omnirl.plan.generation import CONTEXT_BYTES, GIB, Rollout
from omnirl.plan.sizes import Sizes, adapter_size, sizes
from omnirl.recipe.model import Recipe

PROCESSES_BYTES = 5 * GIB
"""Host memory of a run's processes and their imports on a CPU: what `omnirl train` wants to be free."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one device and of one machine, in GiB.

    Attributes:
        limit: of one device; None where the hardware does not say.
        actor: components of each stage of training.
        rollout: components of `generate` and `sync`; None without a rollout.
        teacher: components of a teacher's device; None without one.
        beside: what is on the device beside the actor's peak: contexts, and graphs of the sleeping rollout.
        host: components of host memory, of a machine that trains.
        cache_sequences: sequences of the full length that the key-value cache of one copy holds.
        teacher_sequences: the same of a teacher's copy, of the longest that it accepts; None without one.
        starved: sides whose key-value cache cannot hold one such sequence, as (side, GiB that it lacks).
    """

    limit: float | None
    actor: dict[str, dict[str, float]]
    rollout: dict[str, dict[str, float]] | None
    teacher: dict[str, float] | None
    beside: float
    host: dict[str, float]
    cache_sequences: float | None
    teacher_sequences: float | None
    starved: tuple[tuple[str, float], ...]

    @property
    def actor_stage(self) -> str:
        """The stage of training with the highest peak."""
        return max(self.actor, key=lambda name: sum(self.actor[name].values()))

    @property
    def actor_peak(self) -> float:
        """The peak of torch's allocator: verl's `actor/perf/max_memory_allocated_gb`."""
        return sum(self.actor[self.actor_stage].values())

    @property
    def rollout_stage(self) -> str | None:
        rollout = self.rollout
        return max(rollout, key=lambda name: sum(rollout[name].values())) if rollout else None

    @property
    def rollout_peak(self) -> float | None:
        """The whole device's peak while it generates or takes new weights."""
        stage = self.rollout_stage
        return sum(self.rollout[stage].values()) if self.rollout and stage else None

    @property
    def teacher_peak(self) -> float | None:
        return sum(self.teacher.values()) if self.teacher else None

    @property
    def components(self) -> dict[str, float]:
        """`actor.NAME`, `rollout.NAME` and `teacher.NAME`; each prefix adds up to its peak."""
        found = {f"actor.{name}": size for name, size in self.actor[self.actor_stage].items()}
        if self.rollout and self.rollout_stage:
            found |= {f"rollout.{name}": size for name, size in self.rollout[self.rollout_stage].items()}
        return found | {f"teacher.{name}": size for name, size in (self.teacher or {}).items()}

    @property
    def excess(self) -> dict[str, float]:
        """GiB by which a side is over the device's memory, or its cache short of one sequence; empty when all fits."""
        over = dict(self.starved)
        if self.limit is not None:
            peaks = {
                "actor": self.actor_peak + self.beside,
                "rollout": self.rollout_peak or 0.0,
                "teacher": self.teacher_peak or 0.0,
            }
            over |= {side: peak - self.limit for side, peak in peaks.items() if peak > self.limit}
        return over

    def as_dict(self) -> dict[str, Any]:
        """The `memory` of the document `omnirl/plan/1`; sizes in GiB."""
        return {
            "actor_peak_gib": _rounded(self.actor_peak),
            "rollout_peak_gib": _rounded(self.rollout_peak),
            "teacher_peak_gib": _rounded(self.teacher_peak),
            "limit_gib": self.limit,
            "fits": None if self.limit is None else not self.excess,
            "beside_actor_gib": _rounded(self.beside),
            "actor_stage": self.actor_stage,
            "rollout_stage": self.rollout_stage,
            "components": {name: _rounded(size) for name, size in self.components.items()},
            "stages": {name: _rounded(sum(stage.values())) for name, stage in self.actor.items()},
            "kv_cache_sequences": None if self.cache_sequences is None else round(self.cache_sequences, 1),
            "teacher_kv_cache_sequences": None if self.teacher_sequences is None else round(self.teacher_sequences, 1),
            "host_gib": _rounded(sum(self.host.values())),
            "host": {name: _rounded(size) for name, size in self.host.items()},
        }


def estimate(
    recipe: Recipe, architecture: Architecture | None = None, *, adapter_parameters: int | None = None
) -> Memory:
    """The memory of a recipe's run; the architecture and the adapter are its model's unless given.

    Raises:
        InvalidInput: the model's folder has a config.json that is no Qwen3-Omni's.
    """
    architecture = architecture or architecture_of(recipe.model.path)
    if adapter_parameters is None:
        adapter_parameters = adapter_size(recipe, architecture)
    size = sizes(recipe, architecture, adapter_parameters)
    engine = generation.rollout(recipe, architecture, size)
    teacher = generation.teacher(recipe, architecture)
    on_cpu = recipe.hardware.device == "cpu"
    beside = 0.0 if on_cpu else CONTEXT_BYTES + (engine.asleep if engine else 0.0)
    if teacher and recipe.algo.kind == "opd" and recipe.algo.teacher.shares_devices:
        beside += sum(teacher.values())
        for stage in engine.stages.values() if engine and recipe.rollout.devices is None else ():
            stage["teacher"] = sum(teacher.values())
    least = _longest_taught(recipe, architecture)
    return Memory(
        limit=recipe.hardware.memory_gib,
        actor={name: _gib(stage) for name, stage in training.stages(recipe, architecture, size).items()},
        rollout={name: _gib(stage) for name, stage in engine.stages.items()} if engine else None,
        teacher=_gib(teacher) if teacher else None,
        beside=beside / GIB,
        host=_gib(_host(recipe, size, engine)),
        cache_sequences=engine.cache_tokens / recipe.sequence_tokens if engine else None,
        teacher_sequences=teacher["kv_cache"] / least if teacher else None,
        starved=tuple(_starved(recipe, architecture, engine, teacher)),
    )


def _starved(
    recipe: Recipe, architecture: Architecture, engine: Rollout | None, teacher: dict[str, float] | None
) -> list[tuple[str, float]]:
    if recipe.hardware.memory_gib is None:
        return []
    found = []
    if engine and engine.starves:
        found.append(("rollout", (engine.least_cache - engine.stages["generate"]["kv_cache"]) / GIB))
    least = _longest_taught(recipe, architecture)
    if teacher and teacher["kv_cache"] < least:
        found.append(("teacher", (least - teacher["kv_cache"]) / GIB))
    return found


def _longest_taught(recipe: Recipe, architecture: Architecture) -> float:
    """Bytes of key-value cache that the longest sequence takes on a device of a teacher; 0 without one."""
    if recipe.algo.kind != "opd":
        return 0.0
    teacher = recipe.algo.teacher
    return teacher.max_tokens * generation.cache_bytes(architecture.text, 2, teacher.tensor_parallel)


def _host(recipe: Recipe, size: Sizes, engine: Rollout | None) -> dict[str, float]:
    """Host memory of a machine that trains, in bytes.

    Offloaded parameters and optimizer states are all of its devices' shards, pinned. A reference model is one for full
    training with a KL term (an adapter is switched off instead); verl always keeps it there. While a run starts, the
    first process holds the whole checkpoint. A rollout that sleeps without dropping its weights has them there.
    """
    nodes = max(1, recipe.train_nodes)
    found: dict[str, float] = {"loading": size.weights}
    if recipe.actor.param_offload:
        found["parameters"] = (size.weights + size.adapter) / nodes
    if recipe.actor.optimizer_offload:
        found["optimizer"] = size.optimizer_shard * recipe.devices / nodes
    if needs_reference(recipe):
        found["reference"] = size.weights / nodes
    if engine and engine.host_copy:
        found["sleeping_rollout"] = engine.host_copy * recipe.train_devices_per_node
    if recipe.hardware.device == "cpu":
        found["processes"] = PROCESSES_BYTES
    return found


def needs_reference(recipe: Recipe) -> bool:
    """Whether a second copy of the model is held: full-parameter training against a reference."""
    if recipe.tune.kind == "lora":
        return False
    return recipe.algo.kind == "dpo" or recipe.algo.kl_loss_coef > 0


def _gib(stage: dict[str, float]) -> dict[str, float]:
    return {name: size / GIB for name, size in stage.items()}


def _rounded(size: float | None) -> float | None:
    return None if size is None else round(size, 6)
