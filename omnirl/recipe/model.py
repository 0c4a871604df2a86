"""The schema of a resolved recipe: every setting, its type, its unit and what it is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Field

from omnirl.recipe.kinds import Dapo, Dpo, Full, Gspo, Lora, Opd
from omnirl.recipe.values import (
    NO_ENGINE,
    NO_SCORER,
    SCORERS,
    Count,
    Dtype,
    Environment,
    Every,
    Evidence,
    Files,
    Modality,
    NotNegative,
    Positive,
    Range,
    Scorer,
    Share,
    Size,
    Table,
    TopP,
    finite,
)

__all__ = ["NO_ENGINE", "NO_SCORER", "SCORERS", "Recipe", "Table", "finite", "kinds_of", "settings", "stand_in"]


class Task(Table):
    summary: str
    """One line for `omnirl recipe list`."""
    modalities: Annotated[list[Modality], Field(min_length=1)]
    """What a question is made of."""
    rows: Literal["questions", "preferences"] = "questions"
    """What a row of the data is: a question to answer, or two answers of which one is better."""


class Media(Table):
    image_pixels: Range | None = None
    """Least and most pixels of an image."""
    video_pixels: Range | None = None
    """Least and most pixels of a frame."""
    frames: Range | None = None
    """Least and most frames of a video."""
    fps: Positive | None = None
    """Frames sampled from a second of video."""
    sample_rate: Count | None = None
    """Samples of a second of sound."""


class Data(Table):
    source: str
    """The name that `omnirl data prepare` knows the data by."""
    train: Annotated[Files, Field(min_length=1)]
    """Parquet files to train on; one file may be given as plain text."""
    val: Annotated[Files, Field(min_length=1)]
    """Parquet files that are scored every `train.validate_every` steps."""
    probe: Files = Field(default_factory=list)
    """Parquet files that are scored after the last step only."""
    max_prompt_tokens: Count
    """Longest prompt, in tokens, media included."""
    max_response_tokens: Count
    """Longest response, in tokens."""
    max_tokens: Count | None = None
    """Longest prompt and answer together, in tokens; for training without a rollout."""
    truncation: Literal["error", "left", "right", "middle"]
    """What to do with a prompt that is longer than `max_prompt_tokens`."""
    filter_overlong_prompts: bool
    """Leave over-long prompts out before training."""
    filter_workers: Count | None = None
    """Processes that look for over-long prompts."""
    shuffle: bool = True
    """Draw training prompts in a random order, repeatable by `train.seed`."""
    val_shuffle: bool | None = None
    """Draw validation prompts in a random order."""
    val_max_rows: Count | None = None
    """Score at most this many validation rows."""
    val_batch_rows: Count | None = None
    """Validation rows that are sent to the rollout at once; all of them when unset."""
    soundtrack: bool = False
    """Follow each video by its soundtrack as an audio item."""
    processor: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the model's multi-modal processor."""
    media: Media | None = None
    """Limits that media are brought to when they are loaded; for training without a rollout."""
    modality_weights: dict[Modality, Positive] | None = None
    """How often batches of a modality are drawn, against each other; for training without a rollout."""
    one_modality_a_batch: bool | None = None
    """Make each batch of rows with the same kind of media; for training without a rollout."""


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
    exclude_modules: list[str] | str | None = None
    """Modules that never get an adapter: a regular expression of whole names, or a list of ends of names."""
    freeze_vision_tower: bool | None = None
    """Keep the vision tower as it is."""
    tiny: Tiny | None = None
    """How the tiny checkpoint is made; only for `path = "tiny"`."""


class Optim(Table):
    learning_rate: Positive
    """Peak learning rate."""
    weight_decay: NotNegative
    """Weight decay of AdamW."""
    clip_grad: Positive
    """Largest norm of the gradient."""
    warmup_steps: Size | None = None
    """Optimizer updates over which the learning rate rises."""
    warmup_share: Share | None = None
    """The same as a share of all updates."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """The two momentum terms of AdamW."""


class Batch(Table):
    prompts: Count
    """Prompts a step."""
    mini_prompts: Count
    """Prompts an optimizer update."""
    group_size: Count
    """Responses a prompt; 2 where a row brings both answers."""
    max_tokens_per_device: Count | None = None
    """Tokens of one forward and backward pass; sequences are packed up to it."""
    max_log_prob_tokens_per_device: Count | None = None
    """The same for passes that only compute log-probabilities; `max_tokens_per_device` when unset."""
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
    original_parameters: bool | None = None
    """Let FSDP keep the model's own parameters beside its flat ones; FSDP2 always does."""
    entropy_chunk_tokens: Count | None = None
    """Compute the entropy of this many tokens at a time, which takes less memory."""


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


class Proof(Table):
    least_pearson: Share = 0.99
    """Least correlation of the probabilities that rollout and trainer give the same tokens."""
    most_difference: Positive = 0.06
    """Largest mean difference of their log-probabilities."""
    prompts: Count = 2
    """Questions of each modality to begin with."""
    tokens: Count = 512
    """Answer tokens of each modality that a verdict takes; up to 64 times `prompts` questions are asked for them."""


class Rollout(Table):
    engine: Literal["vllm_omni", "vllm", "hf", "none"]
    """What generates responses; `none` where answers are in the data."""
    mode: Literal["async"] = "async"
    """How the engine is called."""
    load_format: str
    """How the engine gets its first weights."""
    devices: Count | None = None
    """Devices in each machine that only generate, beside those that train; unset, the same devices do both."""
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
    eager: bool | None = None
    """Capture no graphs."""
    max_sequences: Count | None = None
    """Sequences that the engine runs at once."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the engine itself."""
    validation: Validation = Validation()
    """Sampling when validating."""
    proof: Proof | None = None
    """Compare rollout and trainer before the first step, with the weights as they are and with changed ones."""
    max_failed_share: Share = 0.1
    """Stop the run when more than this share of a step's sequences failed."""


class Reward(Table):
    scorer: Scorer
    """`choice`, `gsm8k`, `mmk12`, `none` or `FILE.py:function`. A file is code that runs with your rights."""
    manager: str | None = None
    """verl's reward manager: `naive` when unset, `dapo` with `algo.filter_groups` or `algo.overlong_buffer`."""
    workers: Count | None = None
    """Processes that score."""
    options: dict[str, Any] = Field(default_factory=dict)
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
    loggers: Annotated[list[str], Field(min_length=1)] = Field(default=["console"])
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


class Requires(Table):
    verl: list[str] = Field(default_factory=list)
    """Keys that verl's configuration must have."""


class Recipe(Table):
    """A resolved recipe."""

    task: Task
    data: Data
    model: Model
    tune: Annotated[Lora | Full, Field(discriminator="kind")]
    optim: Optim
    algo: Annotated[Gspo | Dapo | Opd | Dpo, Field(discriminator="kind")]
    batch: Batch
    actor: Actor
    rollout: Rollout
    reward: Reward
    train: Train
    hardware: Hardware
    requires: Requires = Requires()
    """What the run needs beyond the packages that omnirl brings."""
    env: Environment = Field(default_factory=dict)
    """Environment variables of the run."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """Keys of verl's own configuration that have no setting here; each is checked."""
    evidence: Evidence = "planned"
    """How far the pair was tried: `planned` (never run), `smoke` (a few steps), `verified` (a whole run)."""
    proof: str | None = None
    """What shows the evidence: a test, a command or a run."""

    @property
    def train_nodes(self) -> int:
        """Machines that train; a teacher has others for itself, or devices in each of them."""
        teacher = self.algo.teacher if self.algo.kind == "opd" else None
        return self.hardware.nodes - (teacher.nodes if teacher and not teacher.beside else 0)

    @property
    def train_devices_per_node(self) -> int:
        """Devices that train in each machine that does. A rule refuses a recipe that leaves none."""
        taken = self.algo.teacher.devices if self.algo.kind == "opd" else None
        return max(1, self.hardware.devices_per_node - (taken or 0) - (self.rollout.devices or 0))

    @property
    def rollout_devices_per_node(self) -> int:
        """Devices that generate in each machine that trains."""
        return self.rollout.devices or self.train_devices_per_node

    @property
    def teacher_devices_per_node(self) -> int:
        """Devices of a teacher in each machine that has any; 0 without a teacher."""
        return (self.algo.teacher.devices or self.hardware.devices_per_node) if self.algo.kind == "opd" else 0

    @property
    def devices(self) -> int:
        """Devices that train. A rule refuses a recipe that leaves none."""
        return max(1, self.train_nodes) * self.train_devices_per_node

    @property
    def sequence_tokens(self) -> int:
        """The longest sequence of a pass: prompt and response."""
        return self.data.max_tokens or self.data.max_prompt_tokens + self.data.max_response_tokens


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
    having = [part for part in options if name in part.model_fields or name in settings(part)]
    return [get_args(part.model_fields["kind"].annotation)[0] for part in having]


def stand_in(key: str) -> Any:
    """Some valid value of a required setting, to check the others by when its own is wrong; None if there is none."""
    options: list[type[Table]] = [Recipe]
    *path, name = key.split(".")
    for part in path:
        found = [table.model_fields[part] for table in options if part in table.model_fields]
        options = [inner for field in found for inner in tables(field.annotation)]
    fields = [table.model_fields[name] for table in options if name in table.model_fields]
    return _example(fields[0].annotation) if fields and fields[0].is_required() else None


def _example(annotation: Any) -> Any:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal or origin is Annotated:
        return inner[0] if origin is Literal else _example(inner[0])
    if origin is list:
        return [_example(inner[0])]
    return {bool: False, int: 2, float: 2.0, str: SCORERS[0]}.get(annotation)
