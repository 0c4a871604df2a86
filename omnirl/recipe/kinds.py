"""The tables of a recipe whose `kind` decides which settings they have: how to tune, and the algorithm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from omnirl.recipe.values import Count, Dtype, LossAggregation, NotNegative, Positive, Share, Table


class Lora(Table):
    kind: Literal["lora"]
    rank: Count
    """Rank of the adapter."""
    alpha: Count
    """Scale of the adapter; its output is multiplied by alpha / rank."""
    dtype: Dtype
    """Data type of the adapter's weights."""
    merge: bool
    """Send merged weights to the rollout instead of the adapter."""
    target_modules: list[str] | str
    """Modules that get an adapter: ends of names, a regular expression of whole names, or `all-linear`."""
    target_parameters: list[str] | None = None
    """Parameters outside linear layers that get an adapter, such as those of the experts: ends of names."""
    dropout: Share | None = None
    """Share of the adapter's inputs that is dropped while training."""


class Full(Table):
    kind: Literal["full"]


class PolicyLoss(Table):
    clip_low: Positive
    """The ratio is clipped below 1 - clip_low."""
    clip_high: Positive
    """The ratio is clipped above 1 + clip_high."""
    clip_c: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    """Bound of the dual clip for negative advantages."""
    loss_aggregation: LossAggregation
    """How token losses become one number."""
    kl_loss_coef: NotNegative = 0.0
    """Weight of the KL term against the reference model; 0 leaves the reference model out."""


class Gspo(PolicyLoss):
    kind: Literal["gspo"]


class Dapo(PolicyLoss):
    kind: Literal["dapo"]
    entropy_coeff: NotNegative
    """Weight of the entropy bonus."""
    filter_groups: bool
    """Dynamic sampling: replace groups whose rewards are all equal."""
    filter_metric: str
    """What `filter_groups` compares: `reward` or a value that the scorer returns."""
    overlong_buffer: bool = False
    """Take off reward from responses that end within `overlong_tokens` of the longest."""
    overlong_tokens: Count = 4096
    """Length of the stretch before `data.max_response_tokens` over which the penalty rises."""
    overlong_penalty: Positive = 1.0
    """What a response of the full length loses."""
    overlong_log: bool = False
    """Log the penalty of each response."""


class Teacher(Table):
    path: Annotated[str, Field(min_length=1)]
    """The teacher's checkpoint folder or hub name; its tokenizer must be the student's."""
    nodes: Count
    """Machines of the teacher, out of `hardware.nodes`; for it alone unless `devices` is set."""
    devices: Count | None = None
    """Devices of the teacher in each machine, which then trains on its other devices; whole machines when unset."""
    shares_devices: bool = False
    """Put the teacher on the devices that train, in every machine; both must fit, as small checkpoints do."""
    tensor_parallel: Count
    """Devices a copy of the teacher."""
    memory_fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """Share of a device's memory that the teacher's engine may take."""
    max_tokens: Count
    """Longest sequence that the teacher accepts: prompt, response and one more token."""

    @property
    def beside(self) -> bool:
        """Whether it is on machines that train, instead of on machines of its own."""
        return self.shares_devices or self.devices is not None


class Opd(PolicyLoss):
    kind: Literal["opd"]
    divergence: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "forward_kl_topk"]
    """How far the student is from the teacher; verl's name for it."""
    policy_gradient: bool
    """Use the divergence as a reward instead of differentiating it."""
    task_rewards: bool
    """Learn from the task's own rewards as well, as GSPO does."""
    teacher: Teacher
    """The model that is learned from."""


class Dpo(Table):
    kind: Literal["dpo"]
    beta: Positive
    """How strongly the model is held to the reference."""
    loss_type: Literal["sigmoid"]
    """The loss of a pair's margin."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)]
    """Share of pairs taken to be labelled the wrong way round."""
    average_log_prob: bool
    """Divide a sequence's log-probability by its length."""
