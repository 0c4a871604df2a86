"""The rollout `vllm`: verl's own server and worker over a stand-in of vLLM, in a process where that is all the vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from omnirl.engine.failures import ENGINE
from omnirl.engine.phase import ATTEMPT_DIR
from omnirl.engine.rollout.vllm_plugin import ARCHITECTURE, allow
from tests.conftest import plain_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OWN = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "omnirl.engine.plugin", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def seen(config: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("vllm")
    plain = OmegaConf.to_container(config, resolve=True)
    needed = {"rollout": plain["actor_rollout_ref"]["rollout"], "model": plain["actor_rollout_ref"]["model"]}
    needed["rollout"]["name"] = "vllm"
    OmegaConf.save(OmegaConf.create(needed), folder / "config.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.vllm_session", str(folder), str(folder / "config.yaml")],
        env=plain_environment(**OWN, **{ATTEMPT_DIR: str(folder)}, OMP_NUM_THREADS="1"),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return {**json.loads(done.stdout.splitlines()[-1]), "noted": (folder / ENGINE).read_text()}


def test_the_engine_gets_the_thinker_and_no_options_of_ours(seen: dict[str, Any]) -> None:
    given = seen["arguments"]
    assert json.loads(given["hf_overrides"]) == {"architectures": [ARCHITECTURE]}
    assert seen["model"] == "omnirl.engine.rollout.vllm_thinker"
    assert json.loads(given["limit_mm_per_prompt"]) == {"image": 2}
    assert (given["mm_processor_cache_gb"], given["block_size"]) == ("0", "16")
    assert given["logprobs_mode"] == "processed_logprobs"
    context, longest, prompt, response = seen["limits"]
    assert int(given["max_model_len"]) == context == min(longest, max(prompt + response, 4096))
    assert "cannot set `worker_extension_cls`" in seen["refused"]


def test_positions_are_the_trainers_and_those_of_stock_vllm_are_refused(seen: dict[str, Any]) -> None:
    assert "EngineFailure: the rollout engine gives media other positions" in seen["stock positions"]
    assert all(name in seen["stock positions"] for name in ("image (", "two images (", "audio and image (", "video ("))
    assert "positions than the trainer: audio (" not in seen["stock positions"]


def test_every_placeholder_is_banned_and_no_other_token(seen: dict[str, Any]) -> None:
    assert seen["banned"] == seen["media tokens"]
    assert len(seen["banned"]) == 7


def test_prompts_have_one_placeholder_a_medium_and_answers_their_log_probabilities(seen: dict[str, Any]) -> None:
    ids = seen["request"]["prompt"]["prompt_token_ids"]
    assert [ids[0], *ids[2::2]] == [4, 6, 7]
    assert len(ids) == 5
    assert seen["request"]["prompt"]["multi_modal_data"] == {"image": ["one", "two"]}
    assert seen["request"]["sampling"]["logprobs"] == 0
    assert seen["answer"]["token_ids"] == [5, 6, 7]
    assert seen["answer"]["log_probs"] == pytest.approx([-0.5, -0.6, -0.7])
    assert seen["answer"]["stop_reason"] == "completed"


def test_the_room_for_an_answer_counts_the_whole_prompt(seen: dict[str, Any]) -> None:
    _, _, prompt, response = seen["limits"]
    tokens, room = seen["long prompt"]
    assert room == prompt + response - tokens < response
    assert "no room" in seen["no room"]


def test_a_step_of_training_sleeps_updates_and_resets(seen: dict[str, Any]) -> None:
    names = [name for name, _ in seen["step"]]
    assert names[:2] == ["sleep", "reset_encoder_cache"]
    assert seen["step"][0] == ["sleep", [2]]
    updated = names.index("update_weights_from_ipc")
    assert "wake_up" in names[:updated]
    assert {"reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache"} <= set(names[updated:])
    assert names[-2:] == ["wake_up", "reset_prefix_cache"]
    assert seen["weights step"] == 4
    assert seen["sleep level"] == 1


def test_weights_arrive_under_the_names_of_a_checkpoint(seen: dict[str, Any]) -> None:
    assert seen["loaded"] == [
        "thinker.model.norm.weight",
        "thinker.model.layers.0.mlp.experts.0.down_proj.weight",
        "thinker.model.layers.0.mlp.experts.1.down_proj.weight",
    ]


def test_abort_and_death_in_the_middle_of_an_answer(seen: dict[str, Any]) -> None:
    assert seen["aborted"] == [1, "aborted"]
    assert seen["turned away"] == "aborted"
    assert seen["dead"].startswith("EngineDeadError")
    assert "the rollout engine died" in seen["noted"]


def test_a_list_of_plug_ins_gets_this_one() -> None:
    environment = {"VLLM_PLUGINS": "ascend"}
    allow(environment)
    allow(environment)
    assert environment == {"VLLM_PLUGINS": "ascend,omnirl"}
    allow(empty := {})
    assert empty == {}
