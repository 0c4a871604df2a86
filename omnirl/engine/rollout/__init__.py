"""Rollout engines: who answers the prompts during training."""

from __future__ import annotations
