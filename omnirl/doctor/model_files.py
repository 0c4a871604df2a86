"""The checkpoint of a recipe: whether it is here, whole, and of the length that its own headers tell."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from omnirl.doctor.check import Check, Target
from omnirl.files import read_json

TINY = "tiny"
_NAME = "model"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("tokenizer.model",))
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_LONGEST_HEADER = 100 << 20
_SHOWN = 3


def check(target: Target) -> Iterator[Check]:
    """The checkpoint that the recipe names; nothing without a recipe."""
    if target.recipe is None:
        return
    path = target.recipe.model.path
    if path == TINY:
        yield Check(_NAME, "ok", "tiny: built in the run folder")
        return
    folder = Path(path).expanduser()
    if folder.is_dir():
        yield whole(folder, f"cp -r WHOLE_CHECKPOINT/. {folder}")
        return
    yield from _of_hub(path, target.environ)


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Where the hub's client keeps checkpoints."""
    home = Path(environ.get("HF_HOME") or Path(environ.get("HOME") or "~") / ".cache" / "huggingface").expanduser()
    return Path(environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def snapshot(name: str, environ: Mapping[str, str]) -> Path | None:
    """The folder in the hub's cache that `org/model` stands for; None if it was never fetched."""
    folder = hub_cache(environ) / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        revision = ""
    named = folder / "snapshots" / revision
    if revision and named.is_dir():
        return named
    return next((one for one in sorted(folder.glob("snapshots/*")) if one.is_dir()), None)


def whole(folder: Path, mend: str) -> Check:
    """Whether a checkpoint folder is complete: configuration, tokenizer, and every shard in full length."""
    faults = [*_texts(folder), *_weights(folder)]
    if faults:
        shown = "; ".join(faults[:_SHOWN]) + (f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")
        return Check(_NAME, "fail", f"{folder}: {shown}", "a whole checkpoint", mend)
    shards = sorted(folder.glob("*.safetensors"))
    size = sum(shard.stat().st_size for shard in shards)
    return Check(_NAME, "ok", f"{folder}: {len(shards)} file{'' if len(shards) == 1 else 's'}, {size / 2**30:.1f} GiB")


def shard_fault(file: Path) -> str:
    """What is wrong with a safetensors file, by its header alone; empty when its length is what the header tells."""
    try:
        size = file.stat().st_size
        with file.open("rb") as content:
            start = content.read(8)
            if start.startswith(b"version "):
                return "is a Git LFS pointer, not the weights"
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                return "is no safetensors file, or cut short"
            header = json.loads(content.read(length))
    except OSError as error:
        return f"cannot be read ({(error.strerror or str(error)).lower()})"
    except (ValueError, RecursionError):
        return "has a damaged header"
    ends = (
        [_end(entry) for key, entry in header.items() if key != "__metadata__"] if isinstance(header, dict) else [None]
    )
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return "has a damaged header"
    told = 8 + length + max(known, default=0)
    return "" if size == told else f"has {size} bytes, and its header tells {told}"


def _of_hub(path: str, environ: Mapping[str, str]) -> Iterator[Check]:
    if not _HUB_NAME.fullmatch(path):
        hint = "--set 'model.path = \"DIR\"'"
        yield Check(_NAME, "fail", f"there is no folder {path}", "a checkpoint folder, or a name like org/model", hint)
        return
    offline = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _is_on(environ.get(name))]
    fetch = f"{''.join(f'{name}=0 ' for name in offline)}hf download {path}"
    folder = snapshot(path, environ)
    if folder is None:
        found = f"{path} is neither a folder nor in {hub_cache(environ)}"
        if offline:
            found += f"; {' and '.join(offline)} set, so it would not be fetched"
        yield Check(_NAME, "fail", found, "a checkpoint on this machine", fetch)
        return
    yield whole(folder, fetch)


def _texts(folder: Path) -> Iterator[str]:
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        if not (folder / name).is_file():
            yield f"no {name}"
        elif read_json(folder / name) is None:
            yield f"{name} is no JSON object"
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
        yield "no tokenizer (tokenizer.json, or vocab.json and merges.txt)"
    configuration = read_json(folder / "tokenizer_config.json") or {}
    if not any((folder / name).is_file() for name in _TEMPLATES) and not configuration.get("chat_template"):
        yield "no chat template"


def _weights(folder: Path) -> Iterator[str]:
    names = [_SINGLE]
    if (folder / _INDEX).is_file():
        shards = (read_json(folder / _INDEX) or {}).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            yield f"{_INDEX} is damaged"
            return
        names = sorted(set(shards.values()))
    elif not (folder / _SINGLE).is_file():
        yield f"neither {_SINGLE} nor {_INDEX}"
        return
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        yield f"{len(absent)} of {len(names)} shards are missing: {', '.join(absent[:_SHOWN])}"
    for name in names:
        if name not in absent and (fault := shard_fault(folder / name)):
            yield f"{name} {fault}"


def _end(entry: object) -> int | None:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    right = isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(offset, int) for offset in offsets)
    return int(offsets[1]) if right and isinstance(offsets, list) else None


def _is_on(value: str | None) -> bool:
    return (value or "").lower() in ("1", "on", "yes", "true")
