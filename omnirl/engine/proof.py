"""Running the sync proof inside verl's trainer, by the same calls that a training step makes."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import transfer_queue as tq
from datasets import Dataset
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_from_nested

from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.engine.sync import MOST_ROUNDS, Agreement, OutOfSync, compare, document, further_questions, judge, table
from omnirl.files import write_json

_log = logging.getLogger(__name__)

CHANGE = 0.3
"""Size of the change of each weight, against the weight's own root mean square."""
ANSWERS = 2
"""Answers a question."""
_SCANNED_AT_ONCE = 1000
_KINDS = ("image", "video", "audio")


def prove(trainer: Any, settings: Mapping[str, Any]) -> list[Agreement]:
    """Compare rollout and trainer with the weights as they are and with changed ones; the weights are then put back.

    Args:
        trainer: an initialised `PPOTrainer` whose rollout has the trainer's weights and is awake.
        settings: those of a recipe's `rollout.proof`.

    Raises:
        OutOfSync: they disagree, or answers are missing.
    """
    limits = {name: settings[name] for name in ("least_pearson", "most_difference", "tokens")}
    prompts = settings["prompts"]
    chosen = questions(trainer.train_dataset.dataframe, MOST_ROUNDS * prompts)
    workers = trainer.actor_rollout_wg
    with _own_sampling(trainer.replay_buffer):
        agreements = _compare(trainer, chosen, "sent", prompts, limits)
        workers.disturb_weights(CHANGE, trainer.global_steps)
        trainer.checkpoint_manager.update_weights(trainer.global_steps)
        agreements += _compare(trainer, chosen, "changed", prompts, limits)
        workers.settle_weights()
        trainer.checkpoint_manager.update_weights(trainer.global_steps)
    _log.warning("sync proof:\n%s", table(agreements))
    if folder := os.environ.get(ATTEMPT_DIR):
        write_json(Path(folder) / "sync.json", document(agreements, limits))
    if wrong := judge(agreements):
        raise wrong
    return agreements


def questions(rows: Dataset, most: int) -> dict[str, list[int]]:
    """Numbers of the first rows of each modality: `text`, or the kinds of media in a row, such as `image+audio`."""
    kinds = [kind for kind in _KINDS if f"{kind}s" in rows.column_names]
    if not kinds:
        return {"text": list(range(min(len(rows), most)))}
    found: dict[str, list[int]] = {}
    index = 0
    for part in rows.select_columns([f"{kind}s" for kind in kinds]).with_format("arrow").iter(_SCANNED_AT_ONCE):
        for counts in zip(*map(_lengths, part.columns), strict=True):
            name = "+".join(kind for kind, count in zip(kinds, counts, strict=True) if count) or "text"
            numbers = found.setdefault(name, [])
            if len(numbers) < most:
                numbers.append(index)
            index += 1
    return found


def _lengths(column: pa.ChunkedArray) -> list[int | None]:
    return [None] * len(column) if pa.types.is_null(column.type) else pc.list_value_length(column).to_pylist()


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


def _compare(
    trainer: Any, chosen: Mapping[str, list[int]], weights: str, prompts: int, limits: Mapping[str, Any]
) -> list[Agreement]:
    """Ask until each modality has the tokens that a verdict takes, or all its questions were asked; then compare."""
    names: dict[str, str] = {}
    parts: list[KVBatchMeta] = []
    asked, tokens = Counter[str](), Counter[str]()
    while rows := [
        (name, numbers[(asked[name] + at) % len(numbers)])
        for name, numbers in chosen.items()
        for at in range(further_questions(tokens[name], asked[name], prompts=prompts, wanted=limits["tokens"]))
    ]:
        uids = [str(uuid.uuid4()) for _ in rows]
        names |= {uid: name for uid, (name, _) in zip(uids, rows, strict=True)}
        asked.update(name for name, _ in rows)
        part = _ask(trainer, uids, [index for _, index in rows])
        for key, tag in zip(part.keys, part.tags, strict=True):
            tokens[names[_uid(key)]] += tag["response_len"]
        parts.append(part)
    trainer.checkpoint_manager.sleep_replicas()
    answers = KVBatchMeta.concat(parts)
    answers = upsample_batch_to_divisible_size(answers, _multiple(trainer), trainer.tokenizer.eos_token_id)
    answers.extra_info = {
        "calculate_entropy": False,
        "compute_loss": False,
        "temperature": trainer.config.actor_rollout_ref.rollout.temperature,
    }
    trainer.actor_rollout_wg.compute_log_prob(answers)
    fields = ["log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=answers.keys, partition_id=answers.partition_id, select_fields=fields)
    own = response_from_nested(data["log_probs"], data["response_mask"])
    sides: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in chosen}
    columns = (data["rollout_log_probs"].unbind(), own.unbind(), data["response_mask"].unbind())
    for key, rollout, mine, mask in zip(answers.keys, *columns, strict=True):
        name = names.get(_uid(key))
        if name is not None:
            sides[name][0].extend(rollout[mask.bool()].double().tolist())
            sides[name][1].extend(mine[mask.bool()].double().tolist())
    tq.kv_clear(keys=answers.keys, partition_id=answers.partition_id)
    return [compare(name, weights, rollout, mine, **limits) for name, (rollout, mine) in sides.items()]


def _ask(trainer: Any, uids: list[str], indices: list[int]) -> KVBatchMeta:
    """Have the rollout answer rows of the training data, each under a name of its own."""
    items = collate_fn([trainer.train_dataset[index] for index in indices])
    items["uid"] = np.array(uids, dtype=object)
    items["__rollout_n__"] = np.array([ANSWERS] * len(uids), dtype=object)
    batch = tu.get_tensordict(items)
    tu.assign_non_tensor_data(batch, "global_steps", trainer.global_steps)
    waiting = {"is_prompt": True, "status": "pending", "global_steps": trainer.global_steps}
    tq.kv_batch_put(keys=uids, partition_id="train", tags=[dict(waiting) for _ in uids])
    trainer.agent_loop_manager.generate_sequences(batch)
    answers, _ = trainer.replay_buffer.sample(
        global_steps=trainer.global_steps, partition_id="train", batch_size=len(uids)
    )
    return answers


def _uid(key: str) -> str:
    """The question's name in that of an answer."""
    return key.partition("_")[0]


def _multiple(trainer: Any) -> int:
    """What a batch of log-probabilities has to be a multiple of: every rank takes as many, in whole micro-batches."""
    ranks = max(trainer.actor_rollout_wg._query_dispatch_info("actor")) + 1
    rollout = trainer.config.actor_rollout_ref.rollout
    return ranks if rollout.log_prob_use_dynamic_bsz else ranks * rollout.log_prob_micro_batch_size_per_gpu
