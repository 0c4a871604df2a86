"""From a resolved recipe to what verl is told."""

from __future__ import annotations

from omnirl.plan.document import plan
from omnirl.plan.overrides import Rendered, hydra_words, render

__all__ = ["Rendered", "hydra_words", "plan", "render"]
