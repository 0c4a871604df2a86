"""A ground truth in an error message, whatever a data file holds."""

from __future__ import annotations


def shown(ground_truth: object) -> str:
    """The start of a text in quotes and in ASCII, or the type of anything else."""
    if isinstance(ground_truth, str):
        return ascii(ground_truth[:80])
    return f"of type {type(ground_truth).__name__}"
