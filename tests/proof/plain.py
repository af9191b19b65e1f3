"""An app whose one task needs nothing that a broker alone can't do."""

from __future__ import annotations

import asyncio

from tests.proof.tolls import QUEUE, told

from outlast import Outlast

__all__ = ["app", "slow"]

app = Outlast()


@app.task(queue=QUEUE, timeout=60)
async def slow(seconds: float) -> list[int]:
    """Long enough to be hit while it runs."""
    with told() as result:
        await asyncio.sleep(seconds)
        return result
