"""Where recipe files are found, by their names alone. Light enough for shell completion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped() -> Path:
    """The folder of recipes that came with omnirl: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "_recipes"
    return inside if inside.is_dir() else _PACKAGE.parent / "recipes"


def search_path(extra: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Folders to look in, strongest first.

    They are `extra`, the folders in `OMNIRL_RECIPES`, `./recipes` if it holds task files, and the shipped ones.
    """
    named = [Path(part).expanduser() for part in os.environ.get("OMNIRL_RECIPES", "").split(os.pathsep) if part]
    local = Path("recipes")
    nearby = [local] if any(local.glob("*.toml")) else []
    folders = {folder.resolve(): folder for folder in reversed([*extra, *named, *nearby, shipped()])}
    return tuple(reversed(list(folders)))


def find(name: str, folders: Sequence[Path], kind: str = "") -> Path | None:
    """The first `<kind>/<name>.toml` on the search path; tasks have no kind."""
    if not name or Path(name).name != name:
        return None
    return next((file for folder in folders if (file := folder / kind / f"{name}.toml").is_file()), None)


def names(folders: Sequence[Path], kind: str = "") -> list[str]:
    """Names of all tasks, or of all fragments of a kind: `hardware`, `algo` or `tune`."""
    return sorted({file.stem for folder in folders for file in (folder / kind).glob("*.toml")})


def nearest(word: str, candidates: Sequence[str]) -> str | None:
    """The candidate that `word` most likely means."""
    close = get_close_matches(word, candidates, n=1, cutoff=0.6)
    return close[0] if close else None


def suggestion(word: str, candidates: Sequence[str]) -> str | None:
    """A hint that names the nearest candidate, else all of them when they are few."""
    if close := nearest(word, candidates):
        return f"did you mean `{close}`?"
    if candidates and len(candidates) <= 12:
        return "there is " + ", ".join(f"`{name}`" for name in candidates)
    return None
