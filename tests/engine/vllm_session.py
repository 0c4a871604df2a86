"""One server of the rollout `vllm` over the stand-in, asked everything; what it did is printed as JSON.

`python -m tests.engine.vllm_session FOLDER CONFIG.yaml`
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from omegaconf import OmegaConf, open_dict

from tests.engine import vllm_stand_in as vllm

ROOT = Path(__file__).parents[2]


def entry_point() -> Any:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
    module, _, name = declared["omnirl"].partition(":")
    return getattr(importlib.import_module(module), name)


def server(config: Any, **options: Any) -> Any:
    from verl.workers.rollout.replica import RolloutMode

    from omnirl.engine.rollout.vllm import ThinkerServer

    config = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    with open_dict(config):
        config.rollout.engine_kwargs = {"vllm": {"output_mode": "ar", "pipeline_name": "x", **options}}
    return ThinkerServer(
        config=config.rollout,
        model_config=config.model,
        rollout_mode=RolloutMode.HYBRID,
        workers=[],
        replica_rank=0,
        node_rank=0,
        gpus_per_node=1,
        nnodes=1,
        cuda_visible_devices="0",
    )


async def failure(call: Any) -> str:
    try:
        await call
    except Exception as error:  # noqa: BLE001  the caller looks at it
        return f"{type(error).__name__}: {error}"
    return "none"


class Remote:
    """A server as a Ray handle, on a loop of its own."""

    def __init__(self, served: Any, loop: Any) -> None:
        self.served, self.loop = served, loop

    def __getattr__(self, name: str) -> Any:
        def remote(*words: Any, **named: Any) -> Any:
            future = asyncio.run_coroutine_threadsafe(getattr(self.served, name)(*words, **named), self.loop)
            return asyncio.wrap_future(future)

        return SimpleNamespace(remote=remote)


async def update(served: Any, config: Any) -> list[str]:
    """Weights from the training worker's side to the model, through verl's own transfer."""
    from omnirl.engine.rollout.vllm_omni import VllmAdapter

    os.environ |= {"RANK": "0", "RAY_LOCAL_WORLD_SIZE": "1"}
    adapter = VllmAdapter(config.rollout, config.model, None)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    handle = Remote(served, loop)

    async def find() -> Any:
        return handle

    adapter._server = find
    weights = {"model.norm.weight": torch.ones(3), "model.layers.0.mlp.experts.down_proj": torch.ones(2, 3, 4)}
    await adapter.update_weights(iter(weights.items()), global_steps=4, peft_config=None, base_sync_done=True)
    loop.call_soon_threadsafe(loop.stop)
    return [name for name, _ in served.engine.worker.model_runner.model.loaded]


async def session(config: Any) -> dict[str, Any]:
    from omnirl.engine.rollout import vllm_plugin
    from omnirl.engine.thinker import media_token_ids

    found: dict[str, Any] = {}
    served = server(config, limit_mm_per_prompt={"image": 2}, block_size=16)
    await served.launch_server()
    engine, model = served.engine, served.engine.worker.model_runner.model
    given = engine.worker.model_runner.vllm_config.arguments
    found["arguments"] = {name: given[name] for name in (*vllm.KNOWN, *vllm.SWITCHES)}
    found["model"] = type(model).__module__
    logits = model.compute_logits()[0]
    found["banned"] = torch.isinf(logits).nonzero().flatten().tolist()
    found["media tokens"] = media_token_ids(model.config)

    pad = model.config.image_token_id
    wanted = {"temperature": 1.0, "logprobs": True}
    answer = await served.generate([4, pad, pad, pad, 6, pad, 7], dict(wanted), "a", image_data=["one", "two"])
    found["answer"] = answer.model_dump()
    found["request"] = engine.requests[-1]
    limits = [
        model.config.text_config.max_position_embeddings,
        served.config.prompt_length,
        served.config.response_length,
    ]
    found["limits"] = [served.config.max_model_len, *limits]
    long = [4] + [pad] * (served.config.prompt_length + 5)
    await served.generate(long, {}, "b", image_data=["one"])
    found["long prompt"] = [len(long), engine.requests[-1]["sampling"]["max_tokens"]]
    found["no room"] = await failure(served.generate([4] * 100_000, {}, "c"))

    engine.calls.clear()
    await served.sleep()
    await served.wake_up(["weights"])
    found["loaded"] = await update(served, config)
    await served.wake_up(["kv_cache"])
    found["step"] = [[name, list(how.values()) if isinstance(how, dict) else how] for name, how in engine.calls]
    found["weights step"] = served.global_steps

    engine.hold.clear()
    asked = asyncio.create_task(served.generate([4], {}, "d"))
    while "d" not in engine.output_processor.request_states:
        await asyncio.sleep(0.01)
    found["aborted"] = [
        (await served.abort_all_requests(reject_request=True))["aborted_count"],
        (await asked).stop_reason,
    ]
    found["turned away"] = (await served.generate([4], {}, "e")).stop_reason
    await served.resume_generation()
    engine.dead = True
    found["dead"] = await failure(served.generate([4], {}, "f"))

    found["sleep level"] = server(config, sleep_level=1)._resolve_sleep_level()
    found["refused"] = await failure(server(config, worker_extension_cls="x").launch_server())
    vllm.PLUGINS[:] = [lambda: vllm.ModelRegistry.register_model(vllm_plugin.ARCHITECTURE, vllm.StockThinker)]
    found["stock positions"] = await failure(server(config).launch_server())
    return found


def main(folder: Path, path: Path) -> None:
    vllm.install(folder)
    vllm.PLUGINS.append(entry_point())
    ray.get_runtime_context = lambda: SimpleNamespace(get_job_id=lambda: "01000000")  # no Ray is needed here
    config = OmegaConf.load(path)
    sys.stdout.write(json.dumps(asyncio.run(session(config)), default=str) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the servers' sockets would keep it


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
