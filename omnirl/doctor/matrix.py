"""Which versions were run together. What is allowed stands in the package's own metadata, and is read from there."""

from __future__ import annotations

TESTED: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "torch": ("2.13.0", "2.14.1"),
        "transformers": ("5.10.4",),
        "tensordict": ("0.10.0",),
        "verl": ("0.9.1",),
        "TransferQueue": ("0.1.11",),
        "ray": ("2.60.0",),
        "peft": ("0.21.2",),
    },
    "gpu": {
        "torch": ("2.11.0",),
        "vllm": ("0.26.0",),
        "vllm-omni": ("0.26.0",),
        "transformers": ("5.10.4",),
        "tensordict": ("0.10.0",),
        "verl": ("0.9.1",),
        "TransferQueue": ("0.1.11",),
        "ray": ("2.60.0",),
        "peft": ("0.21.2",),
    },
    "npu": {},
}
"""By extra: the versions of the packages that decide how a run behaves."""

TIED = (
    ("vllm-omni", "vllm", 2, "vllm-omni goes with the vllm of the same minor release"),
    ("torch-npu", "torch", 2, "torch-npu goes with the torch of the same minor release"),
    ("vllm-ascend", "vllm", 2, "vllm-ascend goes with the vllm of the same minor release"),
)
"""Pairs whose releases must agree in so many numbers, although their metadata may not say so."""


def told(extra: str) -> str:
    """The tested versions of an extra, for a person to read."""
    if not TESTED[extra]:
        return "nothing was tested on this hardware"
    versions = (f"{name} {' or '.join(tested)}" for name, tested in TESTED[extra].items())
    return f"tested together: {', '.join(versions)}"


def untried(extra: str, package: str, version: str) -> bool:
    """Whether a version is none of those tested; a build's local part (`+cu130`) does not count."""
    tested = next((known for name, known in TESTED[extra].items() if name.lower() == package.lower()), ())
    return bool(tested) and version.partition("+")[0] not in tested
