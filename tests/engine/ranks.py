"""One rank of a few: verl's engine for the Thinker over gloo, without Ray.

`python -m tests.engine.ranks FOLDER RANK WORLD` reads `rows.pt` and `checkpoint.txt` of the folder and leaves what it
found in `WORLD-RANK.pt`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig

from omnirl.engine.fsdp import ThinkerFSDPEngine
from omnirl.engine.processor import OmniModelConfig

DEALT = {1: [[0, 1, 2, 3]], 2: [[0, 1], [2, 3]]}
"""Which rows a rank of so many gets, one a pass. The two ranks never have the same kinds of media at once."""

LORA = {"lora_rank": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def engine(checkpoint: str, *, dtype: str = "fp32", model: dict[str, Any] | None = None, **fsdp: Any) -> Any:
    shown = {
        "override_config": {"attn_implementation": "sdpa"},
        "enable_gradient_checkpointing": False,
        "use_remove_padding": False,
        "exclude_modules": ".*visual.*|.*audio_tower.*",
    }
    found = ThinkerFSDPEngine(
        model_config=OmniModelConfig(path=checkpoint, **shown, **(model or {})),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            model_dtype=dtype,
            mixed_precision={"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            use_torch_compile=False,
            **fsdp,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10, lr_warmup_steps=0),
        checkpoint_config=CheckpointConfig(),
    )
    torch.manual_seed(7)  # the adapter's first weights, the same on every rank
    found.initialize()
    return found


def batch(rows: list[dict[str, Any]], **changed: Any) -> Any:
    """Rows as verl's workers hand them to an engine, one a pass."""
    ids = [torch.tensor(row["token_ids"]) for row in rows]
    tensors = {
        "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
        "loss_mask": torch.nested.as_nested_tensor([torch.ones_like(one) for one in ids], layout=torch.jagged),
        "position_ids": tensordict_utils.nested_tensor_from_tensor_list(
            [row["positions"] for row in rows], ragged_idx=2
        ),
        "multi_modal_inputs": [row["features"] for row in rows],
    }
    told = {
        "use_remove_padding": False,
        "pad_mode": DatasetPadMode.NO_PADDING,
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": 1,
        "temperature": 0.8,
        "calculate_entropy": True,
        **changed,
    }
    return tensordict_utils.get_tensordict(tensors, told)


def loss(model_output: dict[str, Any], data: Any, dp_group: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The mean over the tokens of all ranks, as far as this rank has them, and times the ranks that FSDP divides by."""
    values = model_output["log_probs"].values() + 0.1 * model_output["entropy"].values()
    return -values.sum() / data["batch_num_tokens"] * data["dp_size"], {}


def whole(weight: Any) -> torch.Tensor:
    return (weight.full_tensor() if hasattr(weight, "full_tensor") else weight).detach().clone()


def gradients(run: Any, rows: list[dict[str, Any]], *, step: bool = False) -> dict[str, torch.Tensor]:
    """The gradients of one batch, which verl clears when it leaves the mode."""
    with run.train_mode():
        run.forward_backward_batch(batch(rows), loss)
        named = run.module.named_parameters()
        found = {name: whole(weight.grad) for name, weight in named if weight.grad is not None}
        if step:
            run.optimizer_step()
    return found


def outputs(run: Any, rows: list[dict[str, Any]], **changed: Any) -> dict[str, torch.Tensor]:
    with run.eval_mode():
        found = run.forward_backward_batch(batch(rows, **changed), None, forward_only=True)["model_output"]
    return {name: torch.cat([row.float() for row in found[name].unbind()]) for name in ("log_probs", "entropy")}


def full_parameters(checkpoint: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for deferred in (True, False):
        run = engine(checkpoint, use_no_sync_for_gradient_accumulation=deferred)
        found[f"gradients, deferred {deferred}"] = gradients(run, rows)
    found["plain"] = outputs(run, rows)
    packed = {"use_remove_padding": True, "micro_batch_size_per_gpu": len(rows)}
    found["packed"] = outputs(run, rows, **packed)
    chunked = engine(checkpoint, entropy_from_logits_with_chunking=True, entropy_from_logits_chunk_size=16)
    found["chunked"] = outputs(chunked, rows, **packed)
    frozen = engine(checkpoint, model={"freeze_vision_tower": True})
    before = {name: whole(weight) for name, weight in frozen.module.named_parameters()}
    found["frozen has gradients"] = sorted(gradients(frozen, rows, step=True))
    moved = [name for name, weight in frozen.module.named_parameters() if not torch.equal(whole(weight), before[name])]
    found["frozen moved"] = moved
    return found


def adapter(checkpoint: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """An adapter in float32 on a base in bfloat16: what a step changes, and what goes to the rollout."""
    run = engine(checkpoint, dtype="bf16", model={**LORA, "lora_dtype": "float32", "lora": {"merge": True}})
    before = {name: whole(weight) for name, weight in run.module.named_parameters()}
    for _ in range(3):
        gradients(run, rows, step=True)
    after = {name: whole(weight) for name, weight in run.module.named_parameters()}
    state = list(run.optimizer.state.values())
    merged = {name: weight.clone() for name, weight in run.get_per_tensor_param()[0]}
    again = {name: whole(weight) for name, weight in run.module.named_parameters()}
    return {
        "before": before,
        "after": after,
        "unharmed": all(torch.equal(again[name], after[name]) for name in after),
        "merged": merged,
        "optimizer": [str(values[key].dtype) for values in state for key in ("exp_avg", "exp_avg_sq")],
    }


def main(folder: Path, rank: int, world: int) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{world}", rank=rank, world_size=world
    )
    dealt = torch.load(folder / "rows.pt", weights_only=False)
    rows = [dealt[index] for index in DEALT[world][rank]]
    checkpoint = (folder / "checkpoint.txt").read_text()
    found = {"full": full_parameters(checkpoint, rows), "adapter": adapter(checkpoint, rows)}
    torch.save(found, folder / f"{world}-{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
