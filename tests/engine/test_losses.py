"""Advantages and losses of GSPO, DAPO and on-policy distillation, as recipes configure verl for them, against NumPy.

The references are written from the papers in float64, a response at a time, with gradients by hand:

- group advantages: GRPO (arXiv 2402.03300), section 4.1.1; the deviation is that of a sample, and 1e-6 is added to it
- GSPO (arXiv 2507.18071): one ratio a response, the geometric mean of its tokens'
- DAPO (arXiv 2503.14476): clip-higher and the mean over tokens, with the dual clip (arXiv 1912.09729) that verl adds
- on-policy distillation: the reverse KL of each token as its reward, in a policy gradient with PPO's clip
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

PROMPT = 3
"""Tokens of each prompt; a loss must not see them."""
BASES = {
    "gspo": {"low": 3e-4, "high": 4e-4},
    "dapo": {"low": 0.2, "high": 0.28, "dual": 10.0},
    "opd": {"low": 0.2, "high": 0.2, "dual": 3.0},
}


@dataclass
class Batch:
    """Responses of any length, in groups: log-probabilities now, when they were sampled, and by the teacher."""

    now: list[np.ndarray]
    old: list[np.ndarray]
    teacher: list[np.ndarray]
    rewards: np.ndarray
    groups: list[str]

    def part(self, rows: Sequence[int]) -> Batch:
        chosen = [[values[row] for row in rows] for values in (self.now, self.old, self.teacher)]
        return Batch(*chosen, self.rewards[list(rows)], [self.groups[row] for row in rows])


def random_batch(seed: int, *, spread: float, lengths: Sequence[int] | None = None) -> Batch:
    """Four groups of four; `spread` is how far the policy has moved: below a clip's width, or far above it."""
    chance = np.random.default_rng(seed)
    lengths = lengths or [0, 1, 1, *chance.integers(0, 12, size=13).tolist()]
    old = [-chance.exponential(1.5, size=length) for length in lengths]
    now = [values + chance.normal(0, spread, size=len(values)) for values in old]
    teacher = [-chance.exponential(1.0, size=length) for length in lengths]
    groups = [f"group {row % 4}" for row in range(len(lengths))]
    rewards = chance.integers(0, 2, size=len(lengths)).astype(np.float64)
    for row, group in enumerate(groups):
        if group == "group 0":
            rewards[row] = 1.0  # nothing to tell apart
        elif row == groups.index(group):
            rewards[row] = 1 - rewards[len(groups) - 4 + int(group[-1])]  # and something in the others
    return Batch(now, old, teacher, rewards, groups)


def group_advantages(batch: Batch) -> np.ndarray:
    """(responses,): a reward against the mean of its group, in deviations of the group."""
    found = np.zeros(len(batch.groups))
    for row, group in enumerate(batch.groups):
        others = np.array([batch.rewards[at] for at, name in enumerate(batch.groups) if name == group])
        mean = others.sum() / len(others)
        deviation = np.sqrt(((others - mean) ** 2).sum() / (len(others) - 1))
        found[row] = (batch.rewards[row] - mean) / (deviation + 1e-6)
    return found


Result = tuple[float, list[np.ndarray]]
"""A loss, and its derivative by each response's log-probabilities now."""


def gspo(batch: Batch, *, low: float, high: float) -> Result:
    advantages, responses = group_advantages(batch), len(batch.now)
    loss, gradients = 0.0, []
    for row, advantage in enumerate(advantages):
        length = len(batch.now[row])
        if not length:
            gradients.append(np.zeros(0))
            continue
        ratio = np.exp((batch.now[row] - batch.old[row]).sum() / length)
        clipped = min(max(ratio, 1 - low), 1 + high)
        loss -= min(ratio * advantage, clipped * advantage) / responses
        free = ratio * advantage <= clipped * advantage
        slope = -advantage * ratio / length / responses if free else 0.0
        gradients.append(np.full(length, slope))
    return loss, gradients


def token_loss(
    now: float, old: float, advantage: float, *, low: float, high: float, dual: float
) -> tuple[float, float]:
    """PPO's clipped loss of one token with the dual clip, and its derivative by `now`."""
    ratio = np.exp(now - old)
    clipped = min(max(ratio, 1 - low), 1 + high)
    objective, moves = min(ratio * advantage, clipped * advantage), ratio * advantage <= clipped * advantage
    if advantage < 0 and objective < dual * advantage:
        objective, moves = dual * advantage, False
    return -objective, -ratio * advantage if moves else 0.0


def dapo(batch: Batch, *, low: float, high: float, dual: float) -> Result:
    """The mean over all tokens of the batch: a long answer counts for more than a short one."""
    tokens = sum(map(len, batch.now))
    loss, gradients = 0.0, []
    for row, advantage in enumerate(group_advantages(batch)):
        pairs = zip(batch.now[row], batch.old[row], strict=True)
        found = [token_loss(now, old, advantage, low=low, high=high, dual=dual) for now, old in pairs]
        loss += sum(value for value, _ in found) / tokens
        gradients.append(np.array([slope for _, slope in found]) / tokens)
    return loss, gradients


def distances(batch: Batch) -> list[np.ndarray]:
    """How much likelier the teacher finds each token than the student does."""
    return [teacher - now for teacher, now in zip(batch.teacher, batch.now, strict=True)]


def distillation(
    batch: Batch, *, low: float, high: float, dual: float, given: Sequence[np.ndarray] | None = None
) -> Result:
    """A token's reward is its distance, a number that no gradient flows through; means of responses are averaged."""
    responses = len(batch.now)
    loss, gradients = 0.0, []
    for now, old, rewards in zip(batch.now, batch.old, given or distances(batch), strict=True):
        found = [token_loss(*values, low=low, high=high, dual=dual) for values in zip(now, old, rewards, strict=True)]
        share = responses * max(1, len(now))
        loss += sum(value for value, _ in found) / share
        gradients.append(np.array([slope for _, slope in found]) / share)
    return loss, gradients


def opd(batch: Batch, *, low: float, high: float, dual: float) -> Result:
    """The recipe's: the task's rewards by GSPO, and the teacher."""
    task, teacher = gspo(batch, **BASES["gspo"]), distillation(batch, low=low, high=high, dual=dual)
    return task[0] + teacher[0], [one + other for one, other in zip(task[1], teacher[1], strict=True)]


REFERENCES = {"gspo": gspo, "dapo": dapo, "opd": opd}


def numeric(reference: Any, batch: Batch, row: int, token: int, step: float = 1e-7) -> float:
    """A derivative by differences, to check the ones by hand."""
    values = []
    for sign in (1, -1):
        moved = Batch([now.copy() for now in batch.now], batch.old, batch.teacher, batch.rewards, batch.groups)
        moved.now[row][token] += sign * step
        values.append(reference(moved)[0])
    return (values[0] - values[1]) / (2 * step)


@pytest.fixture(scope="module", params=["gspo", "dapo", "opd"])
def configured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """verl's configuration for an algorithm, from its shipped fragment."""
    from hydra import compose, initialize_config_dir
    from verl.trainer import config as verl_config

    from omnirl.plan import overrides
    from omnirl.recipe import registry

    algo = request.param
    task, hardware = ("mmk12", "ascend910c-x16x2") if algo == "opd" else ("toy", "cpu")
    resolved = registry.resolve(task, hardware, algo=algo, tune="full")
    words = overrides.hydra_words(overrides.render(resolved).overrides)
    with initialize_config_dir(next(iter(verl_config.__path__)), version_base=None):
        return algo, compose("ppo_trainer", overrides=words)


def loss_function(config: Any) -> Any:
    """What verl's worker hands to the engine for this configuration."""
    from verl.trainer.distillation import distillation_ppo_loss, is_distillation_enabled
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    if is_distillation_enabled(config.distillation):
        return partial(distillation_ppo_loss, actor, omega_conf_to_dataclass(config.distillation))
    return partial(ppo_loss, actor)


def advantages_of(config: Any, batch: Batch) -> list[torch.Tensor]:
    """verl's advantages, one a token, as the trainer computes them from scores on last tokens."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    width = max(1, *map(len, batch.now))
    mask = torch.tensor([[float(at < len(now)) for at in range(width)] for now in batch.now], dtype=torch.float64)
    scores = torch.zeros(len(batch.now), width, dtype=torch.float64)
    scores[torch.arange(len(batch.now)), mask.sum(1).long().sub(1).clamp(min=0)] = torch.tensor(batch.rewards)
    options = {"norm_adv_by_std_in_grpo": config.algorithm.norm_adv_by_std_in_grpo}
    estimate = get_adv_estimator_fn(config.algorithm.adv_estimator)
    found, _ = estimate(scores, mask, index=np.array(batch.groups), **options)
    return [row[: len(now)] for row, now in zip(found, batch.now, strict=True)]


def nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def verl_result(config: Any, batch: Batch, parts: Sequence[Sequence[int]]) -> Result:
    """verl's loss and gradients in float64, with the batch in these micro-batches, as the trainer feeds them."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    lose = loss_function(config)
    advantages = advantages_of(config, batch)
    total, leaves = 0.0, [torch.tensor(now, requires_grad=True) for now in batch.now]
    for rows in parts:
        part = batch.part(rows)
        # a model's output at a place is about the token after it
        outputs = [torch.cat([torch.full((PROMPT - 1,), -9.0), leaves[row], torch.full((1,), -9.0)]) for row in rows]
        seen = [np.concatenate([np.full(PROMPT - 1, -8.0), one, [-8.0]]) for one in part.teacher]
        masks = [torch.ones(len(now), dtype=torch.long) for now in part.now]
        data = TensorDict(
            {
                "prompts": nested([torch.ones(PROMPT, dtype=torch.long) for _ in rows]),
                "responses": nested(masks),
                "response_mask": nested(masks),
                "old_log_probs": nested([torch.tensor(old) for old in part.old]),
                "advantages": nested([advantages[row] for row in rows]),
                "teacher_logprobs": nested([torch.tensor(one)[:, None] for one in seen]),
            },
            batch_size=len(rows),
        )
        tokens = sum(map(len, batch.now))
        tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=len(batch.now))
        loss, _ = lose(model_output={"log_probs": nested(outputs)}, data=data)
        loss.backward()
        total += loss.item()
    return total, [np.zeros(0) if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]


def same(found: Result, wanted: Result) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=1e-9, abs=1e-12)
    for row, (mine, right) in enumerate(zip(found[1], wanted[1], strict=True)):
        np.testing.assert_allclose(mine, right, rtol=1e-9, atol=1e-14, err_msg=f"response {row}")


WHOLE = [list(range(16))]
FEW = [[0, 5, 9], [1, 2, 3, 4], [6, 7, 8, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("spread", [1e-4, 5e-4, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients(configured: tuple[str, Any], seed: int, spread: float) -> None:
    algo, config = configured
    batch = random_batch(seed, spread=spread)
    wanted = REFERENCES[algo](batch, **BASES[algo])
    same(verl_result(config, batch, WHOLE), wanted)
    same(verl_result(config, batch, FEW), wanted)


@pytest.mark.parametrize("lengths", [[1] * 16, [0, *[1] * 15], [7] * 16, [0] * 12 + [1, 2, 3, 4]])
def test_lengths(configured: tuple[str, Any], lengths: list[int]) -> None:
    algo, config = configured
    batch = random_batch(5, spread=0.3, lengths=lengths)
    same(verl_result(config, batch, WHOLE), REFERENCES[algo](batch, **BASES[algo]))


def test_advantages(configured: tuple[str, Any]) -> None:
    _, config = configured
    for seed in range(5):
        batch = random_batch(seed, spread=0.1, lengths=[4] * 16)
        wanted = group_advantages(batch)
        found = np.array([row[0].item() for row in advantages_of(config, batch)])
        np.testing.assert_allclose(found, wanted, rtol=1e-9)
        assert all((row == row[0]).all() for row in advantages_of(config, batch))
        assert not wanted[[group == "group 0" for group in batch.groups]].any()
        assert wanted.any()


def test_a_group_of_equal_rewards_teaches_nothing(configured: tuple[str, Any]) -> None:
    algo, config = configured
    batch = random_batch(1, spread=0.3)
    batch.rewards[:] = 1.0
    loss, gradients = verl_result(config, batch, WHOLE)
    if algo == "opd":
        same((loss, gradients), distillation(batch, **BASES[algo]))  # the teacher still does
    else:
        assert loss == 0
        assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("algo", REFERENCES)
def test_the_references_themselves(algo: str) -> None:
    """By differences, away from the clips' corners; and the batches have tokens on both sides of every clip."""
    batch = random_batch(2, spread=1.5 if algo != "gspo" else 4e-4)
    reference = partial(REFERENCES[algo], **BASES[algo])
    if algo == "opd":
        reference = partial(distillation, given=distances(batch), **BASES[algo])
    _, gradients = reference(batch)
    for row, token in ((row, 0) for row in range(16) if len(batch.now[row])):
        assert gradients[row][token] == pytest.approx(numeric(reference, batch, row, token), rel=1e-4, abs=1e-8)
    clipped = {(slopes == 0).any() for slopes in gradients[1:] if len(slopes)}
    assert clipped == {True, False}


def test_clips_are_met() -> None:
    """Of each clip, the dual one too, the batches above have tokens that meet it and others that do not."""
    seen = set()
    for seed in range(3):
        for spread in (0.1, 0.5, 2.0):
            batch = random_batch(seed, spread=spread)
            for now, old, advantage in zip(batch.now, batch.old, group_advantages(batch), strict=True):
                for ratio in np.exp(now - old):
                    seen |= {("high", ratio > 1.28, advantage > 0), ("low", ratio < 0.8, advantage > 0)}
                    seen |= {("dual", ratio > 10, advantage < 0)}
    assert len(seen) == 12


def test_the_teacher_counts_in_distillation_alone(configured: tuple[str, Any]) -> None:
    """Before the first update its gradient is that of the reverse KL: down where the teacher likes a token less."""
    algo, config = configured
    batch = random_batch(3, spread=0.0)
    before = verl_result(config, batch, WHOLE)
    batch.rewards[:] = 0.0
    loss, gradients = verl_result(config, batch, WHOLE)
    if algo != "opd":
        batch.teacher = [one - 1 for one in batch.teacher]
        same(verl_result(config, batch, WHOLE), (loss, gradients))
        return
    assert before[0] != loss
    for gradient, distance in zip(gradients, distances(batch), strict=True):
        np.testing.assert_allclose(gradient, -distance / (16 * max(1, len(distance))), rtol=1e-9)
