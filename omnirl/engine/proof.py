"""Running the sync proof inside verl's trainer, by the same calls that a training step makes."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_from_nested

from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.engine.sync import Agreement, OutOfSync, compare, document, judge, table
from omnirl.files import write_json

_log = logging.getLogger(__name__)

CHANGE = 0.3
"""Size of the change of each weight, against the weight's own root mean square."""
ANSWERS = 2
"""Answers a question."""
_SCANNED_ROWS = 5000
_KINDS = ("image", "video", "audio")


def prove(trainer: Any, settings: Mapping[str, Any]) -> list[Agreement]:
    """Compare rollout and trainer with the weights as they are and with changed ones; the weights are then put back.

    Args:
        trainer: an initialised `PPOTrainer` whose rollout has the trainer's weights and is awake.
        settings: `least_pearson`, `most_difference` and `prompts`, the questions of each modality.

    Raises:
        OutOfSync: they disagree, or answers are missing.
    """
    limits = {name: float(settings[name]) for name in ("least_pearson", "most_difference")}
    chosen = _questions(trainer.train_dataset, int(settings["prompts"]))
    workers = trainer.actor_rollout_wg
    with _own_sampling(trainer.replay_buffer):
        agreements = _round(trainer, chosen, "sent", limits)
        workers.disturb_weights(CHANGE, trainer.global_steps)
        trainer.checkpoint_manager.update_weights(trainer.global_steps)
        agreements += _round(trainer, chosen, "changed", limits)
        workers.settle_weights()
        trainer.checkpoint_manager.update_weights(trainer.global_steps)
    _log.warning("sync proof:\n%s", table(agreements))
    if folder := os.environ.get(ATTEMPT_DIR):
        write_json(Path(folder) / "sync.json", document(agreements, limits))
    judge(agreements)
    return agreements


def modality(row: Mapping[str, Any]) -> str:
    """`text`, or the kinds of media of a row: `image+audio`."""
    return "+".join(kind for kind in _KINDS if len(row.get(f"{kind}s") or ())) or "text"


def _questions(dataset: Any, each: int) -> dict[str, list[int]]:
    """Numbers of the first rows of each modality."""
    found: dict[str, list[int]] = {}
    for index in range(min(len(dataset.dataframe), _SCANNED_ROWS)):
        rows = found.setdefault(modality(dataset.dataframe[index]), [])
        if len(rows) < each:
            rows.append(index)
    return found


@contextmanager
def _own_sampling(buffer: Any) -> Iterator[None]:
    """Take every group as it comes: none is filtered by its rewards, and none replaced where it failed."""

    def refuse(count: int) -> None:
        raise OutOfSync(f"{count} questions of the sync proof failed in the rollout; the log names each one")

    kept = buffer.filter_groups_metric, buffer.refill_fn
    buffer.filter_groups_metric, buffer.refill_fn = None, refuse
    try:
        yield
    finally:
        buffer.filter_groups_metric, buffer.refill_fn = kept


def _round(trainer: Any, chosen: Mapping[str, list[int]], weights: str, limits: Mapping[str, float]) -> list[Agreement]:
    rows = [(name, index) for name, indices in chosen.items() for index in indices]
    names = {str(uuid.uuid4()): name for name, _ in rows}
    items = collate_fn([trainer.train_dataset[index] for _, index in rows])
    items["uid"] = np.array(list(names), dtype=object)
    items["__rollout_n__"] = np.array([ANSWERS] * len(rows), dtype=object)
    batch = tu.get_tensordict(items)
    tu.assign_non_tensor_data(batch, "global_steps", trainer.global_steps)
    waiting = {"is_prompt": True, "status": "pending", "global_steps": trainer.global_steps}
    tq.kv_batch_put(keys=list(names), partition_id="train", tags=[dict(waiting) for _ in rows])
    trainer.agent_loop_manager.generate_sequences(batch)
    answers, _ = trainer.replay_buffer.sample(
        global_steps=trainer.global_steps, partition_id="train", batch_size=len(rows)
    )
    trainer.checkpoint_manager.sleep_replicas()
    answers = upsample_batch_to_divisible_size(answers, _multiple(trainer), trainer.tokenizer.eos_token_id)
    answers.extra_info |= {
        "calculate_entropy": False,
        "compute_loss": False,
        "temperature": trainer.config.actor_rollout_ref.rollout.temperature,
    }
    trainer.actor_rollout_wg.compute_log_prob(answers)
    fields = ["log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=answers.keys, partition_id=answers.partition_id, select_fields=fields)
    own = response_from_nested(data["log_probs"], data["response_mask"])
    sides: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in chosen}
    parts = zip(
        answers.keys, data["rollout_log_probs"].unbind(), own.unbind(), data["response_mask"].unbind(), strict=True
    )
    for key, rollout, mine, mask in parts:
        name = names.get(key.rsplit("_", 2)[0])
        if name is not None:
            sides[name][0].extend(rollout[mask.bool()].double().tolist())
            sides[name][1].extend(mine[mask.bool()].double().tolist())
    tq.kv_clear(keys=answers.keys, partition_id=answers.partition_id)
    return [compare(name, weights, rollout, mine, **limits) for name, (rollout, mine) in sides.items()]


def _multiple(trainer: Any) -> int:
    """What a batch of log-probabilities has to be a multiple of: every rank takes as many, in whole micro-batches."""
    ranks = max(trainer.actor_rollout_wg._query_dispatch_info("actor")) + 1
    rollout = trainer.config.actor_rollout_ref.rollout
    return ranks if rollout.log_prob_use_dynamic_bsz else ranks * rollout.log_prob_micro_batch_size_per_gpu
