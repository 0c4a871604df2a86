"""Where a checkpoint lies: a folder, or what a hub's cache has of a name."""

from __future__ import annotations

from pathlib import Path


def folder(name: str) -> Path:
    """The folder of `model.path`: as it is when there is one, else the snapshot of that name in the hub's cache.

    Nothing is downloaded. Raises OSError when there is neither.
    """
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute() or name.startswith((".", "~")):
        return path.resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise FileNotFoundError(2, f"there is neither a folder nor a downloaded checkpoint `{name}`") from error
