"""The training engine: a verl plug-in. Started as a process, imported by no other room."""

from __future__ import annotations
