"""The pytest plugin: fixtures for a clock that stands still and for an app in memory."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from outlast.testing.clock import FakeClock
from outlast.testing.running import in_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from outlast.app import Outlast

__all__ = ["outlast_clock", "outlast_memory"]


@pytest.fixture
def outlast_clock() -> FakeClock:
    """A clock that only moves when the test says so."""
    return FakeClock()


@pytest.fixture
async def outlast_memory(
    outlast_clock: FakeClock,
) -> AsyncIterator[Callable[[Outlast], Awaitable[Outlast]]]:
    """``await outlast_memory(app)``: the app, open on a store in memory with ``outlast_clock``.

    Needs an async plugin such as pytest-asyncio in auto mode.
    """
    async with AsyncExitStack() as stack:

        async def enter(app: Outlast) -> Outlast:
            return await stack.enter_async_context(in_memory(app, clock=outlast_clock))

        yield enter
