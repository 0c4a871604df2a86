"""The server actor over a stand-in of vllm-omni's engine, reached through Ray as verl reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from omegaconf import OmegaConf, open_dict
from verl.workers.rollout.replica import RolloutMode

from omnirl.engine.failures import ENGINE
from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.engine.rollout.requests import processor_options
from omnirl.engine.rollout.vllm_omni import OmniReplica, _server_name
from omnirl.engine.thinker import media_token_ids
from tests.engine.omni_core import fake_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROMPT = [4, 5, 6]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    attempt = tmp_path_factory.mktemp("attempt")
    ray.init(
        num_cpus=4,
        num_gpus=1,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=2**27,
        runtime_env={"env_vars": {ATTEMPT_DIR: str(attempt)}},
    )
    yield attempt
    ray.shutdown()


class Holder:
    """Stands where a training worker stands: on a node, with a device."""


def launch(config: Any, rank: int, **options: Any) -> OmniReplica:
    config = OmegaConf.create(OmegaConf.to_container(config.actor_rollout_ref, resolve=True))
    with open_dict(config):
        config.rollout.engine_kwargs = {"vllm_omni": options}

    class Replica(OmniReplica):
        server = fake_server()

    async def start() -> OmniReplica:
        replica = Replica(rank, config.rollout, config.model, gpus_per_node=1)
        replica.rollout_mode = RolloutMode.HYBRID
        replica.workers = [ray.remote(Holder).options(num_gpus=0.1, num_cpus=0).remote()]
        await replica.launch_servers()
        return replica

    return asyncio.run(start())


@pytest.fixture(scope="module")
def server(cluster: None, config: Any) -> Iterator[Any]:
    replica = launch(config, 0)  # the actor lives as long as this does
    assert replica.server_address.startswith("vllm_omni://")
    yield ray.get_actor(_server_name(0))
    del replica


def ask(server: Any, **changed: Any) -> Any:
    wanted = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}
    return server.generate.remote(prompt_ids=PROMPT, sampling_params=wanted, request_id="a", **changed)


def test_answers_carry_the_log_probabilities_and_the_weights_step(server: Any) -> None:
    ray.get(server.set_global_steps.remote(9))
    output = ray.get(ask(server))
    assert output.token_ids == [5, 6, 7]
    assert output.log_probs == pytest.approx([-0.5, -0.6, -0.7])
    assert output.stop_reason == "completed"
    assert output.extra_fields["global_steps"] == 9


def test_media_go_to_the_engine_with_one_placeholder_each(server: Any, thinker: Any) -> None:
    pad = thinker.config.image_token_id
    ids = [4, pad, pad, pad, 6, pad, 7]
    ray.get(
        server.generate.remote(
            prompt_ids=ids, sampling_params={}, request_id="b", image_data=["one", "two"], priority=3
        )
    )
    request = ray.get(server.seen.remote())[0][-1]
    assert request["prompt"]["prompt_token_ids"] == [4, pad, 6, pad, 7]
    assert request["prompt"]["multi_modal_data"] == {"image": ["one", "two"]}
    assert request["priority"] == 3
    assert request["sampling_params_list"][0]["logprobs"] is None


def test_placeholders_are_banned_before_the_first_request(server: Any, thinker: Any) -> None:
    assert ray.get(server.seen.remote())[1][0] == "monkey_patch_model"
    assert len(media_token_ids(thinker.config)) == 7


def test_a_step_of_training_sleeps_updates_and_resets(server: Any) -> None:
    before = len(ray.get(server.seen.remote())[1])
    ray.get(server.sleep.remote())
    ray.get(server.wake_up.remote(["weights"]))
    ray.get(server.collective_rpc.remote("update_weights_from_ipc", kwargs={"use_shm": False}))
    ray.get(server.clear_kv_cache.remote())
    ray.get(server.wake_up.remote(["kv_cache"]))
    calls = ray.get(server.seen.remote())[1][before:]
    assert calls[:5] == ["save_buffers", "sleep", "wake_up", "restore_buffers", "update_weights_from_ipc"]
    assert calls[5:7] == ["reset_prefix_cache", "reset_encoder_cache"]


def test_a_prompt_without_room_is_refused(server: Any) -> None:
    with pytest.raises(ValueError, match="no room"):
        ray.get(server.generate.remote(prompt_ids=[4] * 5000, sampling_params={}, request_id="c"))


def test_other_positions_stop_the_start(cluster: None, config: Any) -> None:
    with pytest.raises(RuntimeError, match="other positions than the trainer: image"):
        launch(config, 1, wrong=True)


def test_abort_gate_and_death(cluster: Path, config: Any) -> None:
    server = launch(config, 2).server_handle
    ray.get(server.hold.remote())
    running = ask(server)
    while not ray.get(server.seen.remote())[0]:
        pass
    assert ray.get(server.abort_all_requests.remote(reject_request=True))["aborted_count"] == 1
    assert ray.get(running).stop_reason == "aborted"
    assert ray.get(ask(server)).stop_reason == "aborted"
    ray.get(server.resume_generation.remote())
    running = ask(server)
    ray.get(server.die.remote())
    with pytest.raises(RuntimeError, match="its process ended"):
        ray.get(running, timeout=10)
    assert "the rollout engine died: its process ended" in (cluster / ENGINE).read_text()


def test_videos_keep_their_frames_and_their_rate() -> None:
    metadata = {"fps": 10.0, "frames_indices": [0, 5, 10]}
    options = processor_options({"sampling_rate": 16000}, [("frames", metadata)])
    assert options["sampling_rate"] == 16000
    assert options["videos_kwargs"] == {"fps": 2.0, "do_sample_frames": False, "do_resize": False}
    with pytest.raises(ValueError, match="one rate"):
        processor_options(None, [("a", metadata), ("b", metadata | {"fps": 20.0})])
    assert processor_options(None, None) == {}


def test_a_copy_of_the_engine_stays_on_one_machine(config: Any) -> None:
    async def start() -> None:
        replica = OmniReplica(0, config.actor_rollout_ref.rollout, config.actor_rollout_ref.model, gpus_per_node=1)
        replica.nnodes, replica.workers = 2, [SimpleNamespace()]
        await replica.launch_servers()

    with pytest.raises(ValueError, match="one machine"):
        asyncio.run(start())
