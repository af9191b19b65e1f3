"""Runs what is queued by hand, one round at a time: an app without a worker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.execution import Means, execute
from outlast.job import cancelled, dead, done
from outlast.running import Current

if TYPE_CHECKING:
    from outlast import Failure, Outlast
    from outlast.job import Claim, Progress

__all__ = ["bury", "call_off", "claim_all", "finish", "work"]


async def claim_all(app: Outlast) -> list[Claim]:
    """Take what is due, of every task the app knows."""
    return list(await app.store.claim(("default",), list(app.tasks), 100, 15.0, "by-hand"))


async def work(app: Outlast) -> int:
    """Run each due job once, as a worker would; how many."""
    claims = await claim_all(app)
    means = Means(clock=SystemClock(), chance=SystemChance())
    for claim in claims:
        task = app.tasks[claim.job.task or ""]
        run = Current(claim, _unheard)
        verdict = await asyncio.create_task(execute(claim, task, run, means))
        assert verdict is not None
        await app.store.settle([verdict])
    return len(claims)


async def finish(app: Outlast, result: Any) -> None:
    """Say of the one due job that its task returned ``result``."""
    (claim,) = await claim_all(app)
    task = app.tasks[claim.job.task or ""]
    await app.store.settle([done(claim, task.signature.encode_result(result))])


async def bury(app: Outlast, failure: Failure) -> None:
    """Say of the one due job that it failed for good."""
    (claim,) = await claim_all(app)
    await app.store.settle([dead(claim, failure)])


async def call_off(app: Outlast, failure: Failure | None = None) -> None:
    """Say of the one due job that it was given up."""
    (claim,) = await claim_all(app)
    await app.store.settle([cancelled(claim, failure)])


def _unheard(note: Progress) -> None:
    """Progress goes nowhere here."""
