"""On-policy distillation: what has to agree between a student and its teacher, and teachers out of finished runs."""

from __future__ import annotations
