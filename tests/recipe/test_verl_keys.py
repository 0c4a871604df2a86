from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from omnirl.recipe import verl_keys


def check(values):
    return verl_keys.check(values, lambda key: f"here:{key}")


@given(st.sampled_from(sorted(verl_keys.types())), st.integers(0, 200), st.sampled_from("abz_"))
def test_a_key_with_one_wrong_letter_is_refused_with_the_nearest(key, position, letter):
    position %= len(key)
    typo = key[:position] + letter + key[position + 1 :]
    assume(typo not in verl_keys.types() and not verl_keys.is_open(typo))
    (problem,) = check({typo: None})
    assert problem.code == "unknown-verl-key"
    assert problem.where == f"here:{typo}"
    # Keys such as `lr` and `n` leave little to go by, but some key is always offered.
    assert problem.hint.startswith("did you mean `")


@given(st.sampled_from(sorted(verl_keys.types())))
def test_every_key_of_verl_is_known(key):
    assert check({key: None}) == []


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("actor.optm.lr", "actor_rollout_ref.actor.optim.lr"),
        ("actor_rollout_ref.actor.clip_ratio_hi", "actor_rollout_ref.actor.clip_ratio_high"),
        ("trainer.training_steps", "trainer.total_training_steps"),
        ("rollout.tensor_model_parallel_size", "actor_rollout_ref.rollout.tensor_model_parallel_size"),
    ],
)
def test_the_nearest_key(key, meant):
    assert check({key: 1})[0].hint == f"did you mean `{meant}`?"


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.model.override_config.anything",
        "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.max_num_seqs",
        "data.mm_processor_kwargs.sampling_rate",
        "ray_kwargs.ray_init.num_gpus",
        "reward.custom_reward_function.reward_kwargs.scorer",
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
    ],
)
def test_open_dictionaries_take_any_key(key):
    assert check({key: "x"}) == []
    assert key not in verl_keys.types()


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("trainer.save_freq", "ten", False),
        ("trainer.save_freq", True, False),
        ("trainer.save_freq", 10, True),
        ("trainer.save_freq", "${trainer.test_freq}", True),
        ("actor_rollout_ref.actor.optim.lr", 1, True),
        ("actor_rollout_ref.actor.optim.lr", "1e-6", False),
        ("trainer.balance_batch", 1, False),
        ("trainer.balance_batch", False, True),
        ("trainer.max_actor_ckpt_to_keep", 3, True),
        ("actor_rollout_ref.model.target_modules", ["q_proj"], True),
    ],
)
def test_values_have_the_type_of_verls_own(key, value, right):
    assert (check({key: value}) == []) == right


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")
def test_the_list_is_that_of_the_installed_verl():
    if version("verl") != verl_keys.version():
        pytest.skip(f"the list was made from verl {verl_keys.version()}")
    assert verl_keys.installed() == (verl_keys.version(), verl_keys.types())
