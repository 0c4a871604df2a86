"""A verifier with workers of its own for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omnirl.reward.verify import Verifier


@pytest.fixture(scope="session")
def verifier() -> Iterator[Verifier]:
    made = Verifier(workers=2, timeout_s=20)
    yield made
    made.pool.close()
