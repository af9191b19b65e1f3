"""6. Many jobs: a batch in one write, and lanes that keep some of them in line."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from outlast import KeyConflict, Outlast

app = Outlast("memory://")
order: dict[str, list[int]] = defaultdict(list)
busy: set[str] = set()


@app.task
async def square(n: int) -> int:
    return n * n


async def test_a_batch_is_stored_whole() -> None:
    """`call` makes a job without storing it; a thousand of them cost one commit."""
    async with app.worker():
        handles = await app.enqueue_many([square.call(n) for n in range(1000)])
        assert await handles[-1].result(timeout=60) == 998001
        assert sum([await handle.result(timeout=60) for handle in handles]) == 332833500


async def test_or_not_at_all() -> None:
    async with app:
        keyed = square.using(key="seven")
        await keyed.enqueue(7)
        with pytest.raises(KeyConflict):
            await app.enqueue_many([square.call(1), keyed.call(8), square.call(2)])
        assert (await app.store.depth("default")).queued == 1


@app.task(lane=lambda account, n: account)
async def book(account: str, n: int) -> None:
    assert account not in busy
    busy.add(account)
    await asyncio.sleep(0)
    order[account].append(n)
    busy.remove(account)


async def test_one_lane_runs_one_job_at_a_time_in_order() -> None:
    """However many workers there are. Different lanes don't wait for each other."""
    async with app.worker(concurrency=20):
        calls = [book.call(account, n) for n in range(10) for account in ("ann", "bob")]
        for handle in await app.enqueue_many(calls):
            await handle.result(timeout=60)
    assert order == {"ann": list(range(10)), "bob": list(range(10))}
