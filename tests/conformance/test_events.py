"""Events: the first one counts, and a job that waits for it goes on, whichever comes first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import idle, ids, job, soon, start, take

from outlast.job import Step, give_back
from outlast.store import Feature, Stepping, offers

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock

    from outlast.job import Claim

LONG = 1e9


@pytest.fixture
def steps(store: FullStore) -> Stepping:
    if Feature.STEPS not in store.features:
        pytest.skip("this store keeps no events")
    assert offers(store, Stepping)
    return store


async def await_event(store: FullStore, claim: Claim, event: str) -> None:
    assert offers(store, Stepping)
    assert await store.remember(claim, Step(name=f"#{event}", delay=LONG, event=event))
    await store.settle([give_back(claim, LONG, event=event)])


async def test_the_first_one_counts(steps: Stepping, clock: FakeClock, place: Place) -> None:
    assert await steps.event("bell") is None
    assert await steps.emit("bell", b"1", 100)
    assert not await steps.emit("bell", b"2", 100)
    assert await steps.event("bell") == b"1"
    store = await place.reopen()
    assert offers(store, Stepping)
    clock.advance(99)
    assert await store.event("bell") == b"1"
    clock.advance(1)
    assert await store.event("bell") is None
    assert await store.emit("bell", b"3", 100)
    assert await store.event("bell") == b"3"


async def test_fifty_at_once(steps: Stepping, place: Place) -> None:
    other = await place.open()
    assert offers(other, Stepping)
    handles = [steps, other]
    sent = await asyncio.gather(*(handles[n % 2].emit("bell", b"%d" % n, 100) for n in range(50)))
    assert sum(sent) == 1
    assert await steps.event("bell") == b"%d" % sent.index(True)


async def test_an_event_lets_the_waiting_go_on(
    store: FullStore, steps: Stepping, clock: FakeClock
) -> None:
    one, two, three = await start(store, job("a"), job("b"), job("c"))
    await await_event(store, one, "bell")
    await await_event(store, two, "bell")
    await await_event(store, three, "other")
    assert await take(store) == []
    assert (await store.depth("default")).delayed == 3
    waiter = await idle(store)
    assert await steps.emit("bell", b"", 100)
    await soon(waiter)
    depth = await store.depth("default")
    assert (depth.ready, depth.delayed) == (2, 1)
    assert ids(await take(store)) == ["a", "b"]
    clock.advance(LONG)
    assert ids(await take(store)) == ["c"]


async def test_an_event_that_came_before_is_not_lost(store: FullStore, steps: Stepping) -> None:
    claim = await start(store, job("a"))
    await steps.emit("bell", b"", 100)
    await await_event(store, claim, "bell")
    assert ids(await take(store)) == ["a"]


async def test_an_event_between_the_look_and_the_wait_is_not_lost(
    store: FullStore, steps: Stepping
) -> None:
    claim = await start(store, job("a"))
    await steps.remember(claim, Step(name="#bell", delay=LONG, event="bell"))
    await steps.emit("bell", b"", 100)
    await store.settle([give_back(claim, LONG, event="bell")])
    assert ids(await take(store)) == ["a"]


async def test_what_was_waited_for_wakes_nobody_again(
    store: FullStore, steps: Stepping, clock: FakeClock
) -> None:
    claim = await start(store, job("a"))
    await await_event(store, claim, "bell")
    await steps.emit("bell", b"", 10)
    [claim] = await take(store)
    await steps.remember(claim, Step(name="#bell", result=b""))
    await store.settle([give_back(claim, LONG)])
    clock.advance(10)
    assert await steps.emit("bell", b"", 10)
    assert await take(store) == []


async def test_old_events_are_pruned(store: FullStore, steps: Stepping, clock: FakeClock) -> None:
    for n in range(10):
        await steps.emit(f"bell-{n}", b"", 10)
    await steps.emit("late", b"", 100)
    clock.advance(10)
    assert await store.prune(4) == 4
    assert await store.prune(100) == 6
    assert await store.prune(100) == 0
    assert await steps.event("late") == b""
