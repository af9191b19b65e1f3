"""What tests use in place of the real thing: the clock that the product itself offers to tests."""

from __future__ import annotations

from outlast.testing.clock import FakeClock

__all__ = ["FakeClock"]
