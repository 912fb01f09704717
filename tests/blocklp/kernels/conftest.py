"""Fixtures of tests of Triton's kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["whole", "tiles"])
def dealt(request: pytest.FixtureRequest) -> str:
    """How passes over rows are dealt out to programs, see ``in_triton``."""
    dealt: str = request.param
    return dealt
