"""A checkpoint folder with noise in its weights, made whole or not at all."""

from __future__ import annotations

import glob
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake
from omnirl.files import disk_faults, read_json, write_json
from omnirl.noise import gaussian, shards
from omnirl.noise.shards import Shard, Tensor

REPORT = "noise.json"
SCHEMA = "omnirl/noise/1"
MEANING = (
    "each weight got Gaussian noise with a standard deviation of `ratio` times the root mean square of its tensor, "
    "rounded to the tensor's type"
)
PARTS = {
    "text": "layers and norms of the language model",
    "embeddings": "token embeddings and output head",
    "towers": "audio and vision tower",
    "speech": "talker and code2wav",
}
"""What a checkpoint is made of, as far as noise is concerned."""

_SPEECH, _TOWERS, _EMBEDDINGS = {"talker", "code2wav"}, {"visual", "audio_tower"}, {"embed_tokens", "lm_head"}
_OTHER_WEIGHTS = re.compile(
    r".*\.(safetensors|gguf|h5|msgpack|onnx|ot)|(pytorch_model|consolidated|model).*\.(bin|pth?)"
)
_QUANTIZED = ("F8_E4M3", "F8_E5M2", "F8_E8M0")
_SPARE_BYTES = 64 << 20
_MOST_THREADS = 8


@dataclass(slots=True)
class Part:
    """What was done to one part: counts of tensors and weights, and the size of the noise in the result."""

    noised: bool
    tensors: int = 0
    weights: int = 0
    carried: int = 0
    """Tensors of this part that hold no floating-point numbers, and stay as they are."""
    values: float = 0.0
    noise: float = 0.0

    @property
    def measured(self) -> float:
        """The noise that is really there, rounding included, as a share of the weights."""
        return math.sqrt(self.noise / self.values) if self.values else 0.0

    def as_dict(self) -> dict[str, Any]:
        shown = {"noised": self.noised, "tensors": self.tensors, "weights": self.weights, "not_floating": self.carried}
        return {**shown, "ratio": self.measured}


@dataclass(slots=True)
class Report:
    """What noise.json holds. A part's `ratio` is measured on the weights that were written, rounding included."""

    source: Path
    output: Path
    ratio: float
    seed: int
    parts: dict[str, Part]
    files: int
    size_bytes: int
    left_out: list[str] = field(default_factory=list)
    source_noise: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        import numpy as np

        return {
            "schema": SCHEMA,
            "meaning": MEANING,
            "source": str(self.source),
            "output": str(self.output),
            "ratio": self.ratio,
            "seed": self.seed,
            "generator": f"numpy {np.__version__}, Philox keyed by seed and tensor name, blocks of {gaussian.BLOCK}",
            "parts": {name: part.as_dict() for name, part in self.parts.items()},
            "weight_files": self.files,
            "weight_bytes": self.size_bytes,
            "left_out": self.left_out,
            "source_noise": self.source_noise,
        }


def part_of(name: str) -> str:
    """The part that a tensor belongs to, by its name."""
    words = set(name.split("."))
    if words & _SPEECH:
        return "speech"
    if words & _TOWERS:
        return "towers"
    return "embeddings" if words & _EMBEDDINGS else "text"


def add_noise(
    source: Path,
    output: Path,
    *,
    ratio: float,
    seed: int = 0,
    towers: bool = False,
    embeddings: bool = False,
    threads: int | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Report:
    """Write the checkpoint in `source` to the new folder `output` with noise in its weights.

    Configuration, tokenizer and other small files are carried along. Tensors that hold no floating-point numbers stay
    as they are, and so does the part that speaks. Memory is a few megabytes a thread, however large the checkpoint.

    Args:
        ratio: standard deviation of the noise, as a share of each tensor's root mean square.
        seed: of the noise; the result depends on it and on the tensors alone, not on how files are cut.
        towers, embeddings: whether these parts get noise too.
        threads: threads that work on tensors; as many as there are cores, up to 8, when None.
        advance: called with 1 for each tensor that is written.

    Raises:
        UsageMistake: a ratio that is no share, or an output that exists.
        InvalidInput: the checkpoint is damaged, quantized, or not finite.
        EnvironmentLacks: no room, or no permission.
    """
    if not 0 < ratio <= 10:
        raise UsageMistake(f"a ratio of {ratio:g} is not above 0 and up to 10", hint="--ratio 0.25 is 25 % of noise")
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UsageMistake(f"`{output}` exists", hint=f"name a new folder, or remove this one: rm -r {output}")
    found = shards.find(source)
    noised = {"text": True, "embeddings": embeddings, "towers": towers, "speech": False}
    _check(found, noised)
    carried, left_out = _others(source, found)
    size = sum(shard.size_bytes for shard in found)
    report = Report(
        source.resolve(),
        output.absolute(),
        ratio,
        seed,
        {name: Part(noised[name]) for name in PARTS},
        files=len(found),
        size_bytes=size,
        left_out=left_out,
        source_noise=read_json(source / REPORT),
    )
    with _new_folder(output, size + sum(file.stat().st_size for file in carried)) as scratch:
        for file in carried:
            shutil.copyfile(file, scratch / file.name)
        for shard in found:
            _copy_shard(shard, scratch / shard.path.name, report, threads, advance)
        write_json(scratch / REPORT, report.as_dict())
    return report


def _check(found: Sequence[Shard], noised: dict[str, bool]) -> None:
    """Refuse what noise would make no sense in, before anything is written."""
    wanted = [tensor for shard in found for tensor in shard.tensors if noised[part_of(tensor.name)]]
    if quantized := next((tensor for tensor in wanted if tensor.dtype in _QUANTIZED), None):
        raise InvalidInput(
            f"`{quantized.name}` is quantized ({quantized.dtype}): noise would not fit its scales",
            hint="start from the checkpoint in bfloat16",
        )
    if not any(tensor.dtype in gaussian.FLOATS and tensor.elements for tensor in wanted):
        raise InvalidInput(
            "there is no floating-point weight to add noise to", hint="--towers and --embeddings add parts"
        )


def _others(source: Path, found: Sequence[Shard]) -> tuple[list[Path], list[str]]:
    """Files to carry along, and what is left out: folders, and weights in other forms."""
    weights = {shard.path.name for shard in found} | {REPORT}
    carried, left_out = [], []
    for path in sorted(source.iterdir()):
        if path.name in weights:
            continue
        if path.is_file() and not _OTHER_WEIGHTS.fullmatch(path.name) and not path.name.startswith("."):
            carried.append(path)
        else:
            left_out.append(path.name)
    return carried, left_out


def _copy_shard(
    shard: Shard, target: Path, report: Report, threads: int | None, advance: Callable[[int], None]
) -> None:
    """Header and places stay the same, so the copy has the source's layout byte for byte."""
    count = threads or min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with disk_faults(target), shard.path.open("rb") as read, target.open("wb") as written:
        source, made = read.fileno(), written.fileno()
        os.truncate(made, shard.size_bytes)
        gaussian.copy(source, made, 0, shard.header_bytes)

        def work(tensor: Tensor) -> gaussian.Disturbed | None:
            if report.parts[part_of(tensor.name)].noised and tensor.dtype in gaussian.FLOATS:
                return gaussian.disturb(source, made, tensor, ratio=report.ratio, seed=report.seed)
            gaussian.copy(source, made, tensor.start, tensor.size_bytes)
            return None

        # the sums are added in the order of the file, whatever order the threads finish in
        for tensor, done in _in_order(work, shard.tensors, count):
            part = report.parts[part_of(tensor.name)]
            part.tensors += 1
            part.weights += tensor.elements
            if done is None:
                part.carried += tensor.dtype not in gaussian.FLOATS
            else:
                part.values += done.values
                part.noise += done.noise
            advance(1)
        os.fsync(made)


def _in_order(
    work: Callable[[Tensor], gaussian.Disturbed | None], tensors: Sequence[Tensor], threads: int
) -> Iterator[tuple[Tensor, gaussian.Disturbed | None]]:
    """Results in the order of `tensors`; the first failure stops what has not begun."""
    pool = ThreadPoolExecutor(threads)
    try:
        futures: list[Future[gaussian.Disturbed | None]] = [pool.submit(work, tensor) for tensor in tensors]
        for tensor, future in zip(tensors, futures, strict=True):
            yield tensor, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _new_folder(output: Path, size_bytes: int) -> Iterator[Path]:
    """A folder beside `output` that takes its name when the block ends well, and goes when it does not."""
    parent = output.absolute().parent
    with disk_faults(output):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent, output.name)
        free = shutil.disk_usage(parent).free
    if free < size_bytes + _SPARE_BYTES:
        raise EnvironmentLacks(
            f"`{parent}` has {free / 2**30:.1f} GiB free, and the checkpoint takes {size_bytes / 2**30:.1f}",
            hint="free some space, or name a folder on another disk",
        )
    scratch = parent / f".{output.name}.{os.getpid()}.partial"
    with disk_faults(output):
        scratch.mkdir()
        try:
            yield scratch
            scratch.replace(output)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def _remove_abandoned(parent: Path, name: str) -> None:
    """Folders that were left by calls that were killed."""
    for path in parent.glob(f".{glob.escape(name)}.*.partial"):
        number = path.name.split(".")[-2]
        if number.isdecimal() and path.is_dir() and not Path(f"/proc/{number}").exists():
            shutil.rmtree(path, ignore_errors=True)
