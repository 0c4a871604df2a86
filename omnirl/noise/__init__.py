"""Checkpoints with noise in their weights: students that have something to learn back from a teacher.

`25 % of noise` means: each weight of a tensor gets Gaussian noise whose standard deviation is 0.25 times the root mean
square of that tensor. Relative to its own size every tensor is disturbed as much as every other.
"""

from __future__ import annotations
