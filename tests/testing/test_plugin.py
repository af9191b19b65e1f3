"""The fixtures that pytest finds by itself once outlast is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast import Outlast
from outlast.testing import drain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outlast.testing import FakeClock

app = Outlast()


@app.task(name="wait-a-day")
async def wait_a_day() -> str:
    return "done"


async def test_the_fixtures(
    outlast_memory: Callable[[Outlast], Awaitable[Outlast]], outlast_clock: FakeClock
) -> None:
    await outlast_memory(app)
    handle = await wait_a_day.using(delay=86_400).enqueue()
    assert await drain(app) == []
    outlast_clock.advance(86_400)
    assert len(await drain(app)) == 1
    assert await handle.result() == "done"
