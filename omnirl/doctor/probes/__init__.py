"""Programs that the doctor starts: each loads what may fail to load, and writes one JSON object as its last line."""

from __future__ import annotations
