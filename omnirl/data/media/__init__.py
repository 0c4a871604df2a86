"""Whether media can be trained on: one verdict a file, from PyAV in worker processes, ffprobe and ffmpeg, or Pillow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omnirl.data.media.rules import Verdict

if TYPE_CHECKING:
    from omnirl.data.media.judge import Judge

__all__ = ["Judge", "Verdict"]


def __getattr__(name: str) -> Any:
    # The worker processes import this package too, and must not pay for the judge.
    if name == "Judge":
        from omnirl.data.media.judge import Judge

        return Judge
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
