"""Counts what waits in a queue, as far as a broker tells a client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from outlast.errors import StoreUnavailable
from outlast.job import Depth
from outlast.stores.rabbitmq.topology import dead_name

if TYPE_CHECKING:
    from outlast.stores.rabbitmq.engine import Engine
    from outlast.stores.rabbitmq.op import Op

__all__ = ["count"]


async def count(engine: Engine, op: Op[Depth], namespace: str, queue: str) -> None:
    """Of the tasks that this store has had to do with; the ladder's jobs are in no queue yet."""
    names = [place.name for place in engine.places(queue)]
    try:
        dead, *ready = await asyncio.gather(
            *(_ready(engine, name) for name in (dead_name(namespace, queue), *names))
        )
        waiting, running = engine.intake.counts(queue)
        op.answer = Depth(ready=sum(ready) + waiting, running=running, dead=dead)
    except Exception as error:
        op.error = error
    engine.answer(op)


async def _ready(engine: Engine, name: str) -> int:
    link = engine.link
    if link is None:
        raise StoreUnavailable(f"{engine.shown}: not connected")
    found = await link.look(name)
    return 0 if found is None else found[0]
