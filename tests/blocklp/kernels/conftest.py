"""Fixtures of tests of Triton's kernels."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["whole", "tiles"])
def dealt(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One program makes all passes of an instance, or each tile is a program of its own."""
    from blocklp.kernels import triton_rows

    if request.param == "tiles":
        monkeypatch.setattr(triton_rows, "CACHED", 0)
        monkeypatch.setattr(triton_rows, "SMALL", 0)
    dealt: str = request.param
    return dealt
