"""C27, for claims: a job handed to a claim that is cancelled in the same moment is lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.cases.rig import scaled

from outlast.job import done

if TYPE_CHECKING:
    from tests.cases.rig import Rig

    from outlast import Outlast


def test_c27(rig: Rig) -> None:
    number = scaled(10_000, 1_500)
    dice = random.Random(27)
    got: list[bytes] = []

    async def produce(app: Outlast) -> None:
        for n in range(number):
            await app.tasks["instant"].enqueue(n)
            if n % 50 == 0:
                await asyncio.sleep(0)

    async def consume(app: Outlast) -> None:
        """Claims are cancelled at all moments of their way, by time-outs and by hand."""
        misses = 0
        while len(got) < number and misses < 100_000:
            claim = asyncio.ensure_future(
                app.store.claim(["default"], ["instant"], dice.randint(1, 5), 15.0, "w")
            )
            if dice.random() < 0.7:
                await asyncio.sleep(0 if dice.random() < 0.3 else dice.uniform(0, 0.002))
                claim.cancel()
            with suppress(asyncio.CancelledError):
                claims = await claim
                assert await app.store.settle([done(c) for c in claims]) == []
                got.extend(c.job.payload for c in claims)
                misses = misses + 1 if not claims else 0

    async def both(app: Outlast) -> None:
        await asyncio.gather(produce(app), consume(app))
        depth = await app.store.depth("default")
        assert (depth.live, depth.done) == (0, number)

    rig.run(both)
    assert len(got) == len(set(got)) == number
