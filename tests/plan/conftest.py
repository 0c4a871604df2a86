from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure.
settings.register_profile("busy", deadline=None, max_examples=50)
settings.load_profile("busy")
