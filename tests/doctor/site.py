"""Folders of packages for tests, with metadata as an installer leaves them, for `importlib.metadata` to read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

OWN = (
    "pyarrow>=19",
    "torch<2.15,>=2.13; extra == 'train'",
    "transformers<5.11,>=5.10.4; extra == 'train'",
    "verl[verl-core]==0.9.1; extra == 'train'",
    "torch==2.11.0; extra == 'gpu'",
    "vllm==0.26.0; extra == 'gpu'",
    "vllm-omni==0.26.0; extra == 'gpu'",
    "flash-attn>=2.8.3; extra == 'gpu'",
    "torch==2.11.0; extra == 'npu'",
    "torch-npu==2.11.0; extra == 'npu'",
)
"""What omnirl asks for in these tests."""


def install(site: Path, name: str, version: str, requires: Iterable[str] = (), module: str | None = None) -> None:
    """Leave what pip leaves of a package: its metadata, and a module if it has one."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in requires),
    ]
    (folder / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if module:
        (site / module).mkdir()
        (site / module / "__init__.py").write_text("", encoding="utf-8")


def omnirl_site(site: Path, **versions: str) -> list[str]:
    """A folder with omnirl and packages (`_` stands for `-` in their names); returns it as a search path."""
    install(site, "omnirl", "0.1.0", OWN)
    install(site, "pyarrow", "20.0.0")
    for name, version in versions.items():
        install(site, name.replace("_", "-"), version)
    return [str(site)]
