"""Checkpoints, data files, disks."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from omnirl.doctor import data_files, disk, engine, model_files
from omnirl.doctor.check import Check, Target
from omnirl.recipe import registry
from tests.doctor.site import install


def shard(file: Path, numbers: int = 8) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]},
    }
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 4 * numbers)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "chat_template.jinja").write_text("x")
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for name in set(shards.values()):
        shard(folder / name)
    return folder


def test_a_whole_checkpoint(checkpoint: Path) -> None:
    found = model_files.whole(checkpoint, "mend")
    assert (found.verdict, found.found) == ("ok", f"{checkpoint}: 2 files, 0.0 GiB")


def _cut(folder: Path) -> None:
    file = folder / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def _pointer(folder: Path) -> None:
    (folder / "model-2.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def _header(folder: Path) -> None:
    (folder / "model-1.safetensors").write_bytes(struct.pack("<Q", 4) + b"[1,]" + b"x" * 20)


def _huge(folder: Path) -> None:
    (folder / "model-1.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}" * 20)


def _offsets(folder: Path) -> None:
    text = json.dumps({"w": {"data_offsets": "0"}}).encode()
    (folder / "model-1.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is no JSON object"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (lambda folder: (folder / "model-1.safetensors").unlink(), "1 of 2 shards are missing: model-1.safetensors"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "index.json is damaged"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "neither model.safetensors nor"),
        (lambda folder: (folder / "model-1.safetensors").write_bytes(b""), "cut short"),
        (_cut, "bytes, and its header tells"),
        (_pointer, "Git LFS pointer"),
        (_header, "damaged header"),
        (_huge, "cut short"),
        (_offsets, "damaged header"),
    ],
)
def test_a_checkpoint_that_is_not_whole(checkpoint: Path, damage, says: str) -> None:
    damage(checkpoint)
    found = model_files.whole(checkpoint, "mend")
    assert found.verdict == "fail"
    assert says in found.found


def model(path: str, **environ: str) -> Check:
    recipe = registry.resolve("gsm8k", "h800x4", sets=[f"model.path = {json.dumps(path)}"]).recipe
    (found,) = model_files.check(Target(recipe, Path("runs"), environ))
    return found


def test_a_checkpoint_in_the_hubs_cache(checkpoint: Path, tmp_path: Path) -> None:
    cache = tmp_path / "hub" / "models--org--omni"
    (cache / "snapshots").mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc\n")
    checkpoint.rename(cache / "snapshots" / "abc")
    assert model("org/omni", HF_HOME=str(tmp_path)).verdict == "ok"
    assert model("org/omni", HF_HUB_CACHE=str(tmp_path / "hub")).verdict == "ok"
    (cache / "snapshots" / "abc" / "model-1.safetensors").unlink()
    half = model("org/omni", HF_HOME=str(tmp_path))
    assert (half.verdict, half.hint) == ("fail", "hf download org/omni")


def test_a_checkpoint_that_is_nowhere(tmp_path: Path) -> None:
    absent = model("org/omni", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert (absent.verdict, absent.hint) == ("fail", "HF_HUB_OFFLINE=0 hf download org/omni")
    assert "HF_HUB_OFFLINE set" in absent.found
    assert model(str(tmp_path / "no/such"), HF_HOME=str(tmp_path)).hint == "--set 'model.path = \"DIR\"'"
    tiny = registry.resolve("toy", "cpu").recipe
    assert next(iter(model_files.check(Target(tiny, Path("runs"), {})))).verdict == "ok"


def test_data_files(toy_data: Path, tmp_path: Path) -> None:
    assert data_files.files("data.train", [toy_data / "train.parquet"], "toy").found == "32 rows in 1 file"
    absent = data_files.files("data.train", [tmp_path / "x.parquet"], "gsm8k")
    assert absent.hint == f"omnirl data prepare gsm8k --input DIR --output {tmp_path}"
    nested = data_files.files("data.val", [tmp_path / "toy" / "image" / "x.parquet"], "toy")
    assert nested.hint == f"omnirl data prepare toy --output {tmp_path / 'toy'}"
    (tmp_path / "y.parquet").write_bytes(b"PAR1 but no more")
    damaged = data_files.files("data.val", [toy_data / "train.parquet", tmp_path / "y.parquet"], "gsm8k")
    assert damaged.verdict == "fail"
    assert "y.parquet" in damaged.found


def test_disks(tmp_path: Path) -> None:
    assert disk.runs(tmp_path / "a" / "b", {}).verdict == "ok"
    (tmp_path / "file").write_text("x")
    assert disk.runs(tmp_path / "file" / "runs", {}).verdict == "fail"
    assert disk.existing(tmp_path / "a" / "b") == tmp_path
    assert disk.cache(tmp_path / "hub", 0.001).found.endswith(f"free in {tmp_path}")
    assert disk.cache(tmp_path / "hub", 1e9).verdict == "fail"


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    small = disk.runs(tmp_path, {"checkpoint_gb": 0.001, "checkpoints_gb": 0.01})
    assert (small.verdict, small.wanted) == ("ok", "0.0 GB for the checkpoints that are kept")
    many = disk.runs(tmp_path, {"checkpoint_gb": 0.001, "checkpoints_gb": 1e9})
    assert many.verdict == "warn"
    assert str(many.hint).startswith("--set 'train.keep_checkpoints = ")
    large = disk.runs(tmp_path, {"checkpoint_gb": 1e9, "checkpoints_gb": None})
    assert (large.verdict, large.hint) == ("fail", "--runs DIR")


def test_attention(tmp_path: Path) -> None:
    assert engine.attention("sdpa", "cpu", []).verdict == "ok"
    assert engine.attention("flash_attention_2", "cpu", []).hint == "--set 'model.attention = \"sdpa\"'"
    assert engine.attention(None, "cuda", [str(tmp_path)]).verdict == "fail"
    install(tmp_path, "flash-attn", "2.8.3")
    assert engine.attention(None, "cuda", [str(tmp_path)]).found == "flash_attention_2, flash-attn 2.8.3"
    assert engine.attention(None, "npu", []).verdict == "ok"
