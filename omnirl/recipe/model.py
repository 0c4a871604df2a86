"""The schema of a resolved recipe: every setting, its type, its unit and what it is for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

SCORERS = ("choice", "gsm8k")
"""Scorers that come with omnirl; any other is `FILE.py:function`."""

_CUSTOM_SCORER = re.compile(r".+\.py:[A-Za-z_]\w*")
_ENV_NAME = re.compile(r"[A-Za-z_]\w*")

Modality = Literal["text", "image", "audio", "video"]
Evidence = Literal["planned", "smoke", "verified"]
Dtype = Literal["fp32", "float32", "bf16", "bfloat16", "fp16", "float16"]
LossAggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _never_or_every(value: int) -> int:
    if value != -1 and value < 1:
        raise ValueError("must be -1 (never) or at least 1")
    return value


def _known_scorer(value: str) -> str:
    if value not in SCORERS and not _CUSTOM_SCORER.fullmatch(value):
        known = ", ".join(f"`{name}`" for name in SCORERS)
        raise ValueError(f"must be one of {known} or `FILE.py:function`, not `{value}`")
    return value


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"`{name}` cannot be the name of an environment variable")
        if "\0" in text:
            raise ValueError(f"the value of `{name}` holds a NUL character")
    return value


Files = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_one_or_many)]
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Every = Annotated[int, AfterValidator(_never_or_every)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class Task(Table):
    summary: str
    """One line for `omnirl recipe list`."""
    modalities: Annotated[list[Modality], Field(min_length=1)]
    """What a question is made of."""


class Data(Table):
    source: str
    """The name that `omnirl data prepare` knows the data by."""
    train: Annotated[Files, Field(min_length=1)]
    """Parquet files to train on; one file may be given as plain text."""
    val: Annotated[Files, Field(min_length=1)]
    """Parquet files that are scored every `train.validate_every` steps."""
    probe: Files = []
    """Parquet files that are scored after the last step only."""
    max_prompt_tokens: Count
    """Longest prompt, in tokens, media included."""
    max_response_tokens: Count
    """Longest response, in tokens."""
    truncation: Literal["error", "left", "right", "middle"]
    """What to do with a prompt that is longer than `max_prompt_tokens`."""
    filter_overlong_prompts: bool
    """Leave over-long prompts out before training."""
    shuffle: bool = True
    """Draw training prompts in a random order, repeatable by `train.seed`."""
    val_max_rows: Count | None = None
    """Score at most this many validation rows."""
    val_batch_rows: Count | None = None
    """Validation rows that are sent to the rollout at once; all of them when unset."""
    soundtrack: bool = False
    """Follow each video by its soundtrack as an audio item."""
    processor: dict[str, Any] = {}
    """Keyword arguments for the model's multi-modal processor."""


class Tiny(Table):
    seed: int
    """Seed of the weights and of the warm-up."""
    warmup_steps: Size = 0
    """Supervised steps before the first training step."""
    warmup_learning_rate: Positive = 3e-3
    """Learning rate of the warm-up."""
    warmup_label_accuracy: Share = 0.3
    """Share of warm-up labels that are right; the others are drawn evenly."""


class Model(Table):
    path: Annotated[str, Field(min_length=1)]
    """A checkpoint folder or a hub name; `tiny` builds a small random checkpoint in the run folder."""
    attention: str | None = None
    """Attention implementation, such as `sdpa` or `flash_attention_2`."""
    remove_padding: bool
    """Pack sequences instead of padding them."""
    gradient_checkpointing: bool
    """Recompute activations in the backward pass to save memory."""
    exclude_modules: str | None = None
    """Regular expression of modules that never get an adapter."""
    freeze_vision_tower: bool | None = None
    """Keep the vision tower as it is."""
    tiny: Tiny | None = None
    """How the tiny checkpoint is made; only for `path = "tiny"`."""


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
    """Modules that get an adapter."""


class Full(Table):
    kind: Literal["full"]


class Optim(Table):
    learning_rate: Positive
    """Peak learning rate."""
    weight_decay: NotNegative
    """Weight decay of AdamW."""
    clip_grad: Positive
    """Largest norm of the gradient."""
    warmup_steps: Size | None = None
    """Optimizer updates over which the learning rate rises."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """The two momentum terms of AdamW."""


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
    """Replace groups whose rewards are all equal."""
    filter_metric: str
    """What `filter_groups` compares: `reward` or a value that the scorer returns."""


class Batch(Table):
    prompts: Count
    """Prompts a step."""
    mini_prompts: Count
    """Prompts an optimizer update."""
    group_size: Count
    """Responses a prompt."""
    max_tokens_per_device: Count | None = None
    """Tokens of one forward and backward pass; sequences are packed up to it."""
    micro_sequences: Count | None = None
    """Sequences of one forward and backward pass on each device."""


class Actor(Table):
    strategy: Literal["fsdp", "fsdp2"]
    """How parameters are sharded."""
    dtype: Dtype
    """Data type of the parameters."""
    param_offload: bool
    """Keep parameters in host memory between passes."""
    optimizer_offload: bool
    """Keep the optimizer's state in host memory between updates."""
    ref_param_offload: bool
    """Keep the reference model's parameters in host memory."""
    compile: bool | None = None
    """Use torch.compile."""


class Validation(Table):
    n: Count = 1
    """Responses a validation prompt."""
    temperature: NotNegative | None = None
    """Sampling temperature."""
    top_p: TopP | None = None
    """Nucleus sampling."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Sample among this many tokens; -1 is all."""
    greedy: bool | None = None
    """Take the likeliest token each time."""


class Rollout(Table):
    engine: Literal["vllm_omni", "vllm", "hf"]
    """What generates responses."""
    mode: Literal["async"] = "async"
    """How the engine is called."""
    load_format: str
    """How the engine gets its first weights."""
    tensor_parallel: Count
    """Devices a copy of the engine."""
    memory_fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    """Share of a device's memory that the engine may take."""
    prefix_caching: bool
    """Reuse the key-value cache of equal prefixes."""
    prompt_tokens: Count | None = None
    """Longest prompt that the engine accepts, in tokens."""
    temperature: NotNegative | None = None
    """Sampling temperature in training."""
    top_p: TopP | None = None
    """Nucleus sampling in training."""
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """Sample among this many tokens in training; -1 is all."""
    dtype: Dtype | None = None
    """Data type of the engine's weights."""
    workers: Count | None = None
    """Processes that drive the engine."""
    capture_sizes: list[Count] | None = None
    """Batch sizes for which graphs are captured."""
    max_sequences: Count | None = None
    """Sequences that the engine runs at once."""
    options: dict[str, Any] = {}
    """Keyword arguments for the engine itself."""
    validation: Validation = Validation()
    """Sampling when validating."""
    max_failed_share: Share = 0.1
    """Stop the run when more than this share of a step's sequences failed."""


class Reward(Table):
    scorer: Annotated[str, AfterValidator(_known_scorer)]
    """`choice`, `gsm8k` or `FILE.py:function`. A file is code that runs with your rights."""
    manager: str = "naive"
    """verl's reward manager."""
    workers: Count | None = None
    """Processes that score."""
    options: dict[str, Any] = {}
    """Keyword arguments for the scorer."""


class Train(Table):
    steps: Count | None = None
    """Stop after this many steps, whatever `epochs` says."""
    epochs: Count
    """Passes over the training data."""
    seed: Size
    """Seed of data order, sampling and initial adapter weights."""
    save_every: Every
    """Steps between checkpoints; -1 is never."""
    validate_every: Every
    """Steps between validations; -1 is never."""
    validate_before: bool
    """Validate before the first step."""
    keep_checkpoints: Count | None = None
    """Keep only this many newest checkpoints."""
    balance_batch: bool
    """Give each device about the same number of tokens."""
    loggers: Annotated[list[str], Field(min_length=1)]
    """Where verl sends metrics, such as `console`, `wandb` or `tensorboard`."""


class Hardware(Table):
    summary: str
    """One line on the machine."""
    device: Literal["cuda", "npu", "cpu"]
    """What the model runs on."""
    nodes: Count
    """Machines."""
    devices_per_node: Count
    """Devices in each machine."""
    memory_gib: Positive | None = None
    """Memory of one device, in GiB."""


class Recipe(Table):
    """A resolved recipe."""

    task: Task
    data: Data
    model: Model
    tune: Annotated[Lora | Full, Field(discriminator="kind")]
    optim: Optim
    algo: Annotated[Gspo | Dapo, Field(discriminator="kind")]
    batch: Batch
    actor: Actor
    rollout: Rollout
    reward: Reward
    train: Train
    hardware: Hardware
    env: Annotated[dict[str, str], AfterValidator(_environment)] = {}
    """Environment variables of the run."""
    verl: dict[str, Any] = {}
    """Keys of verl's own configuration that have no setting here; each is checked."""
    evidence: Evidence = "planned"
    """How far the pair was tried: `planned` (never run), `smoke` (a few steps), `verified` (a whole run)."""
    proof: str | None = None
    """What shows the evidence: a test, a command or a run."""


def tables(annotation: Any) -> Iterator[type[Table]]:
    """Every table class that a field of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from tables(get_args(annotation)[0])
    elif get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        for part in get_args(annotation):
            yield from tables(part)


def settings(table: type[Table] = Recipe, prefix: str = "") -> Iterator[str]:
    """Every dotted setting, those of all kinds included; an open table counts as one setting."""
    for name, field in table.model_fields.items():
        inner = list(tables(field.annotation))
        if not inner:
            yield prefix + name
        for part in inner:
            yield from settings(part, f"{prefix}{name}.")


def kinds_of(key: str) -> list[str]:
    """The kinds of its table that have this setting: `algo.entropy_coeff` -> `["dapo"]`."""
    table, _, name = key.partition(".")
    field = Recipe.model_fields.get(table)
    options = list(tables(field.annotation)) if field and field.discriminator else []
    return [get_args(part.model_fields["kind"].annotation)[0] for part in options if name in part.model_fields]


def stand_in(key: str) -> Any:
    """Some valid value of a required setting, to check the others by when its own is wrong; None if there is none."""
    options: list[type[Table]] = [Recipe]
    *path, name = key.split(".")
    for part in path:
        options = [inner for table in options if part in table.model_fields for inner in _tables_of(table, part)]
    fields = [table.model_fields[name] for table in options if name in table.model_fields]
    return _example(fields[0].annotation) if fields and fields[0].is_required() else None


def _tables_of(table: type[Table], name: str) -> Iterator[type[Table]]:
    return tables(table.model_fields[name].annotation)


def _example(annotation: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal or origin is Annotated:
        return inner[0] if origin is Literal else _example(inner[0])
    if origin is list:
        return [_example(inner[0])]
    return {bool: False, int: 2, float: 2.0, str: SCORERS[0]}.get(annotation)


def finite(value: Any) -> bool:
    """Whether a value from TOML can be written as JSON: no dates, no infinities."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(finite(item) for item in value)
    if isinstance(value, dict):
        return all(finite(item) for item in value.values())
    return isinstance(value, bool | int | str)
