"""Noise in whole checkpoints: how much, where, always the same, and never half a folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnirl.errors import EnvironmentLacks, InvalidInput, UsageMistake
from omnirl.noise import folder, gaussian, shards
from tests.conftest import plain_environment
from tests.noise.test_shards import write

LAYER = "thinker.model.layers.0.mlp.up_proj.weight"
NAMES = {
    LAYER: "text",
    "thinker.model.norm.weight": "text",
    "thinker.model.embed_tokens.weight": "embeddings",
    "thinker.lm_head.weight": "embeddings",
    "thinker.audio_tower.layers.0.fc1.weight": "towers",
    "thinker.visual.blocks.0.attn.qkv.weight": "towers",
    "talker.model.layers.0.mlp.up_proj.weight": "speech",
    "code2wav.decoder.0.conv.weight": "speech",
}
Tensors = dict[str, np.ndarray]


def bf16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values that are exact in bfloat16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def make(path: Path, tensors: Tensors, dtype: str = "BF16", files: int = 1) -> Path:
    """A checkpoint folder with the tensors dealt out to so many files, and what else lies in such a folder."""
    path.mkdir()
    names, weight_map = list(tensors), {}
    for number in range(files):
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        content = b""
        for name in names[number::files]:
            raw = tensors[name].tobytes()
            shape = list(tensors[name].shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(content), len(content) + len(raw)]}
            content += raw
            weight_map[name] = f"model-{number}.safetensors"
        write(path / (f"model-{number}.safetensors" if files > 1 else shards.SINGLE), header, content)
    if files > 1:
        (path / shards.INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    (path / "config.json").write_text('{"model_type": "qwen3_omni_moe"}')
    (path / "tokenizer.json").write_text("{}")
    return path


def names(path: Path) -> list[str]:
    return sorted(inner.name for inner in path.iterdir())


def contents(path: Path) -> dict[str, bytes]:
    return {
        tensor.name: shard.path.read_bytes()[tensor.start : tensor.start + tensor.size_bytes]
        for shard in shards.find(path)
        for tensor in shard.tensors
    }


@pytest.fixture
def tensors() -> Tensors:
    chance = np.random.default_rng(0)
    return {name: bf16(chance.normal(size=(300, 40)) * 10.0**-number) for number, name in enumerate(NAMES)}


def test_how_much_and_where(tmp_path: Path, tensors: Tensors) -> None:
    source = make(tmp_path / "teacher", tensors, files=3)
    (source / "pytorch_model.bin").write_bytes(b"other weights")
    (source / "original").mkdir()
    report = folder.add_noise(source, tmp_path / "student", ratio=0.25)
    before, after = contents(source), contents(tmp_path / "student")
    for name, part in NAMES.items():
        assert folder.part_of(name) == part
        if part != "text":
            assert after[name] == before[name]
            continue
        was, now = (
            (np.frombuffer(raw[name], np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            for raw in (before, after)
        )
        share = (now - was) / np.sqrt(np.mean(was**2))
        assert np.std(share) == pytest.approx(0.25, rel=0.03)
        assert abs(np.mean(share)) < 0.01
        assert abs(np.corrcoef(share, was)[0, 1]) < 0.03  # added, not multiplied
        assert np.mean(np.abs(share) < 0.25) == pytest.approx(0.683, abs=0.02)
    files = sorted(path.name for path in (tmp_path / "student").iterdir())
    assert files == sorted(
        ["config.json", "tokenizer.json", "noise.json", shards.INDEX, *(f"model-{n}.safetensors" for n in range(3))]
    )
    document = json.loads((tmp_path / "student" / "noise.json").read_text())
    assert document == report.as_dict()
    assert document["parts"]["text"]["ratio"] == pytest.approx(0.25, rel=0.02)
    assert document["parts"]["towers"] == {
        "noised": False, "tensors": 2, "weights": 24000, "not_floating": 0, "ratio": 0.0
    }  # fmt: skip
    assert document["left_out"] == ["original", "pytorch_model.bin"]
    assert names(tmp_path) == ["student", "teacher"]


def test_parts_by_option(tmp_path: Path, tensors: Tensors) -> None:
    source = make(tmp_path / "teacher", tensors)
    folder.add_noise(source, tmp_path / "student", ratio=0.25, towers=True, embeddings=True)
    before, after = contents(source), contents(tmp_path / "student")
    assert {name for name in before if before[name] == after[name]} == {
        name for name, part in NAMES.items() if part == "speech"
    }


def test_the_same_however_it_is_cut(tmp_path: Path, tensors: Tensors) -> None:
    """Files, order of tensors and threads change nothing; the seed changes everything."""
    backwards = dict(reversed(tensors.items()))
    made = [
        (make(tmp_path / "a", tensors), {"threads": 1}),
        (make(tmp_path / "b", tensors, files=4), {"threads": 7}),
        (make(tmp_path / "c", backwards, files=3), {"threads": 2}),
    ]
    results = []
    for number, (source, options) in enumerate(made):
        folder.add_noise(source, tmp_path / f"out-{number}", ratio=0.5, seed=3, **options)
        results.append(contents(tmp_path / f"out-{number}"))
    assert results[0] == results[1] == results[2]
    folder.add_noise(made[0][0], tmp_path / "other", ratio=0.5, seed=4)
    other = contents(tmp_path / "other")
    assert all((other[name] != results[0][name]) == (part == "text") for name, part in NAMES.items())


@pytest.mark.parametrize(("dtype", "kind"), [("F32", np.float32), ("F16", np.float16), ("F64", np.float64)])
def test_types(tmp_path: Path, dtype: str, kind: type, tensors: Tensors) -> None:
    """All types of a tensor get the same noise, up to their own rounding (F64 draws its own)."""
    exact = {name: (raw.astype(np.uint32) << 16).view(np.float32).astype(kind) for name, raw in tensors.items()}
    names = [name for name in exact if name == LAYER]
    source = make(tmp_path / "a", {name: exact[name] for name in names}, dtype)
    folder.add_noise(source, tmp_path / "b", ratio=0.25)
    now = np.frombuffer(contents(tmp_path / "b")[LAYER], kind).astype(np.float64)
    was = exact[LAYER].astype(np.float64).ravel()
    assert np.std(now - was) == pytest.approx(0.25 * np.sqrt(np.mean(was**2)), rel=0.03)


def test_rounding_is_torchs(tmp_path: Path) -> None:
    """bfloat16 is rounded to nearest, ties to even, as torch does it, over several blocks."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, gaussian.BLOCK // 2 + 333, generator=generator).bfloat16()
    source = make(tmp_path / "a", {LAYER: weights.view(torch.uint16).numpy()})
    folder.add_noise(source, tmp_path / "b", ratio=0.25, seed=5)
    (shard,) = shards.find(source)
    key = int.from_bytes(hashlib.blake2b(f"5 {LAYER}".encode(), digest_size=16).digest(), "little")
    noise = np.concatenate(
        [
            np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, block])).standard_normal(size, np.float32)
            for block, size in enumerate([gaussian.BLOCK, weights.numel() - gaussian.BLOCK])
        ]
    )
    rms = weights.double().pow(2).mean().sqrt().item()
    wanted = (torch.from_numpy(noise) * np.float32(0.25 * rms) + weights.float().flatten()).bfloat16()
    written = np.frombuffer(contents(tmp_path / "b")[shard.tensors[0].name], np.uint16).copy()
    assert torch.equal(torch.from_numpy(written).view(torch.bfloat16), wanted)
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x3F817FFF, 0x3F818001, 0x80008000 - 2**32], dtype=torch.int32)
    mine = gaussian._encode(ties.view(torch.float32).numpy(), "BF16")
    assert torch.equal(torch.from_numpy(mine).view(torch.bfloat16), ties.view(torch.float32).bfloat16())


@pytest.mark.parametrize("value", [0x7FC0, 0x7F80, 0xFF80])
def test_weights_that_are_not_finite(tmp_path: Path, tensors: Tensors, value: int) -> None:
    tensors[LAYER][7, 7] = value
    source = make(tmp_path / "teacher", tensors)
    with pytest.raises(InvalidInput, match=f"`{LAYER}` holds NaN or infinity"):
        folder.add_noise(source, tmp_path / "student", ratio=0.25)
    assert names(tmp_path) == ["teacher"]


def test_sums_that_do_not_fit(tmp_path: Path) -> None:
    source = make(tmp_path / "a", {LAYER: np.full(1000, 60000, np.float16)}, "F16")
    with pytest.raises(InvalidInput, match="too large for F16"):
        folder.add_noise(source, tmp_path / "b", ratio=0.25)
    assert names(tmp_path) == ["a"]


def test_zeros_and_nothing(tmp_path: Path) -> None:
    zeros = {"model.zero": np.zeros(5, np.float32), "model.none": np.zeros((0, 3), np.float32)}
    source = make(tmp_path / "a", zeros, "F32")
    folder.add_noise(source, tmp_path / "b", ratio=0.25)
    assert contents(tmp_path / "b") == contents(source)


@pytest.mark.parametrize(
    ("dtype", "fault"), [("F8_E4M3", "is quantized"), ("I8", "no floating-point weight"), ("BOOL", "no floating-point")]
)
def test_what_takes_no_noise(tmp_path: Path, dtype: str, fault: str) -> None:
    source = make(tmp_path / "a", {LAYER: np.ones(8, np.uint8)}, dtype)
    with pytest.raises(InvalidInput, match=fault):
        folder.add_noise(source, tmp_path / "b", ratio=0.25)
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("ratio", [0.0, -0.1, 11.0, float("nan"), float("inf")])
def test_ratios(tmp_path: Path, tensors: Tensors, ratio: float) -> None:
    with pytest.raises(UsageMistake, match="ratio"):
        folder.add_noise(make(tmp_path / "a", tensors), tmp_path / "b", ratio=ratio)


def test_outputs_that_exist(tmp_path: Path, tensors: Tensors) -> None:
    source = make(tmp_path / "teacher", tensors)
    with pytest.raises(UsageMistake, match="exists"):
        folder.add_noise(source, source, ratio=0.25)
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageMistake, match="exists"):
        folder.add_noise(source, tmp_path / "file", ratio=0.25)
    (tmp_path / "empty").mkdir()
    folder.add_noise(source, tmp_path / "empty", ratio=0.25)
    assert (tmp_path / "empty" / "noise.json").is_file()


def test_noise_on_noise_is_told(tmp_path: Path, tensors: Tensors) -> None:
    source = make(tmp_path / "a", tensors)
    folder.add_noise(source, tmp_path / "b", ratio=0.25)
    report = folder.add_noise(tmp_path / "b", tmp_path / "c", ratio=0.1)
    assert report.as_dict()["source_noise"]["ratio"] == 0.25


def test_no_room(tmp_path: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make(tmp_path / "a", tensors)
    monkeypatch.setattr(folder, "_SPARE_BYTES", 1 << 60)
    with pytest.raises(EnvironmentLacks, match="GiB free, and the checkpoint takes"):
        folder.add_noise(source, tmp_path / "b", ratio=0.25)
    assert names(tmp_path) == ["a"]


def test_what_a_killed_call_left_goes(tmp_path: Path, tensors: Tensors) -> None:
    source = make(tmp_path / "a", tensors)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left = tmp_path / f".b.{gone.pid}.partial"
    running = tmp_path / f".b.{os.getppid()}.partial"
    for path in (left, running):
        path.mkdir()
    folder.add_noise(source, tmp_path / "b", ratio=0.25)
    assert not left.exists()
    assert running.exists()


def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    """A tensor of 256 MB, in a process that may have half of it beyond what numpy takes by itself."""
    path = tmp_path / "a"
    path.mkdir()
    size = 1 << 28
    write(path / shards.SINGLE, {LAYER: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}})
    with (path / shards.SINGLE).open("r+b") as file:
        file.truncate(file.seek(0, 2) + size)
    script = (
        "import resource, sys, numpy.random; from pathlib import Path; from omnirl.noise import folder;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "folder.add_noise(Path(sys.argv[1]), Path(sys.argv[2]), ratio=0.25, threads=2);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(tmp_path / "b")],
        env=plain_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < size / 2
