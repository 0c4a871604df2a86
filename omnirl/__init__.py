"""Reinforcement-learning post-training for the Qwen3-Omni Thinker."""

from __future__ import annotations
