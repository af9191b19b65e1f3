"""Calls cancelled at any point: it happened or it did not, and the store goes on."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.job import Death, Status, dead, done, retry

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock

ROUNDS = 40


async def cut_off(call: Awaitable[Any], steps: int) -> bool:
    """Begin a call and cancel it a few turns of the loop later; whether it was in time."""
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    if steps > 5:
        # Some more real time, so that threads get their turn as well.
        await asyncio.wait((task,), timeout=steps * 1e-4)
    task.cancel()
    done_, _ = await asyncio.wait((task,), timeout=60)
    assert done_, "cancelling it was not enough"
    return not task.cancelled()


def some(chance: Random, tries: int) -> int:
    """Steps: the more, the oftener it was cut off, since a slow disk does nothing in a moment."""
    return chance.randrange(20) << min(tries, 10)


@pytest.fixture
def turns() -> list[int]:
    return [Random(n).choice([0, 0, 1, 1, 2, 3, 6, 9, 15]) for n in range(ROUNDS)]


async def test_add(store: FullStore, turns: list[int]) -> None:
    for n, steps in enumerate(turns):
        whole = await cut_off(store.add([job(f"{n}a", key=f"{n}"), job(f"{n}b")]), steps)
        await store.depth("default")
        again = await store.add([job(f"{n}a", key=f"{n}"), job(f"{n}b")])
        assert len({answer.created for answer in again}) == 1, "half a batch"
        assert not whole or not again[0].created
    assert len(await take(store, 1000)) == 2 * ROUNDS


async def test_claim(store: FullStore, clock: FakeClock, turns: list[int]) -> None:
    names = await add(store, *(job() for _ in range(2 * ROUNDS)))
    for n, steps in enumerate(turns):
        await cut_off(store.claim(["default"], [None], 2, 10.0, f"w{n}"), steps)
    clock.advance(10)
    while await store.recover(1000):
        pass
    assert ids(await take(store, 1000)) == names


async def test_settle(store: FullStore, turns: list[int]) -> None:
    for n, steps in enumerate(turns):
        [a, b] = await start(store, job(f"{n}a"), job(f"{n}b"))
        verdicts = [done(a, b"1", (job(f"{n}c", queue="then"),)), dead(b, OOPS)]
        whole = await cut_off(store.settle(verdicts), steps)
        lost = await store.settle(verdicts)
        assert len(lost) in (0, 2), "half a batch"
        assert not whole or len(lost) == 2
        assert (await get(store, f"{n}a")).status is Status.DONE
        assert (await get(store, f"{n}b")).status is Status.DEAD
    assert (await store.depth("then")).ready == ROUNDS


async def test_renew(store: FullStore, clock: FakeClock, turns: list[int]) -> None:
    running = await start(store, job("a"), lease=10)
    for steps in turns:
        clock.advance(9)
        await cut_off(store.renew([running], 10), steps)
        assert list(await store.renew([running], 10)) == []
    assert await store.recover(10) == 0


async def test_recover(store: FullStore, clock: FakeClock, turns: list[int]) -> None:
    await add(store, job("a", max_crashes=None))
    for n, steps in enumerate(turns):
        [running] = await take(store, lease=10)
        assert running.job.crashes in (0, n - 1)
        clock.advance(10)
        await cut_off(store.recover(10), steps)
        await store.recover(10)
        found = await get(store, "a")
        assert (found.status, found.crashes) == (Status.QUEUED, n)


async def test_recover_worker(store: FullStore, turns: list[int]) -> None:
    await add(store, job("a", max_crashes=None))
    for n, steps in enumerate(turns, 1):
        await take(store, worker="w")
        await cut_off(store.recover_worker("w", Death(alone=True)), steps)
        await store.recover_worker("w", Death(alone=True))
        found = await get(store, "a")
        assert (found.status, found.crashes) == (Status.QUEUED, n)


async def test_cancel_and_revive(store: FullStore, turns: list[int]) -> None:
    await add(store, job("a", key="k"))
    for steps in turns:
        await cut_off(store.cancel(["a"]), steps)
        await store.cancel(["a"])
        assert (await get(store, "a")).status is Status.CANCELLED
        await cut_off(store.revive(["a"]), steps)
        await store.revive(["a"])
        assert (await get(store, "a")).status is Status.QUEUED
    assert (await store.depth("default")).ready == 1


async def test_prune_and_purge(store: FullStore, clock: FakeClock, turns: list[int]) -> None:
    for steps in turns:
        await add(store, job(ttl=1, keep=0), job(), job())
        clock.advance(1)
        await cut_off(store.prune(10), steps)
        await store.prune(10)
        assert (await store.depth("default")).live == 2
        await cut_off(store.purge("default", [Status.QUEUED]), steps)
        await store.purge("default", [Status.QUEUED])
        assert (await store.depth("default")).live == 0


READS: dict[str, Any] = {
    "get": lambda store: store.get(["a"]),
    "find": lambda store: store.find(),
    "depth": lambda store: store.depth("default"),
    "lines": lambda store: store.lines(),
    "finished": lambda store: store.finished(["a"], 1e9),
    "wait": lambda store: store.wait(["default"], 1e9),
    "workers": lambda store: store.workers(),
    "pause": lambda store: store.pause("other"),
}


@pytest.mark.parametrize("read", READS)
async def test_the_next_caller_gets_its_own_answer(
    store: FullStore, turns: list[int], read: str
) -> None:
    await add(store, *(job(f"{n}", payload=b"%d" % n) for n in range(10)), job("a"))
    for n, steps in enumerate(turns):
        await cut_off(READS[read](store), steps)
        [found] = await store.get([f"{n % 10}"])
        assert found is not None
        assert found.payload == b"%d" % (n % 10)


async def test_all_of_it_at_once(store: FullStore, place: Place, clock: FakeClock) -> None:
    """Producers and consumers whose calls are cut off at random: every job ends exactly once."""
    chance = Random(11)
    expected = {f"{n}" for n in range(60)}
    ended: list[str] = []
    handles = [store, await place.open()]

    async def produce(name: str) -> None:
        tries = 0
        while not await cut_off(store.add([job(name, max_crashes=None)]), some(chance, tries)):
            tries += 1

    async def consume(handle: FullStore, worker: str) -> None:
        tries = 0
        while len(ended) < len(expected):
            claims: list[Any] = []
            whole = await cut_off(_claim(handle, worker, claims), some(chance, tries))
            tries = 0 if whole else tries + 1
            for claim in claims:
                if chance.random() < 0.3:
                    await handle.settle([retry(claim, 0, OOPS)])
                elif not await handle.settle([done(claim)]):
                    ended.append(claim.job.id)
            if not claims:
                clock.advance(10)
                await handle.recover(100)

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(produce(name) for name in sorted(expected)),
            *(consume(handle, f"w{n}") for n, handle in enumerate(handles)),
        )
    assert sorted(ended) == sorted(expected)
    assert (await store.depth("default")).done == len(expected)


async def _claim(store: FullStore, worker: str, claims: list[Any]) -> None:
    claims.extend(await store.claim(["default"], [None], 3, 10.0, worker))
