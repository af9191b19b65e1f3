"""`Direct`: the same promises for callers that can't await, mixed with those who do."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, cast

import pytest
from tests.conformance.steps import add, idle, ids, job, soon, take

from outlast.errors import KeyConflict, QueueFull, StoreClosed
from outlast.job import Added, Lost, done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore

    from outlast.store import Direct


def direct(store: FullStore) -> Direct:
    return cast("Direct", store)


async def test_a_whole_life(place: Place) -> None:
    store = direct(place.connect())
    with pytest.raises(StoreClosed):
        store.add_now([job()])
    store.open_now()
    store.open_now()
    assert list(store.add_now([job("a"), job("b")])) == [Added("a"), Added("b")]
    assert store.depth_now("default").ready == 2
    claims = store.claim_soon(["default"], [None], 10, 1e9, "w").result(60)
    assert ids(list(claims)) == ["a", "b"]
    assert list(store.settle_now([done(claims[0])])) == []
    assert list(store.settle_now([done(claims[0])])) == [Lost(claims[0], "lost")]
    store.close_now()
    store.close_now()
    with pytest.raises(StoreClosed):
        store.depth_now("default")


async def test_errors(store: FullStore) -> None:
    direct(store).add_now([job("a", key="k", digest=b"1")], capacity=1)
    with pytest.raises(QueueFull):
        direct(store).add_now([job("b")], capacity=1)
    with pytest.raises(KeyConflict):
        direct(store).add_now([job("b", key="k", digest=b"2")])
    assert list(await store.get(["b"])) == [None]


async def test_mixed_calls_keep_one_order(store: FullStore) -> None:
    names = []
    for n in range(10):
        if n % 2:
            names += await add(store, job(f"{n}"))
        else:
            names += [answer.id for answer in direct(store).add_now([job(f"{n}")])]
    [first] = direct(store).claim_soon(["default"], [None], 1, 1e9, "w").result(60)
    assert [first.job.id, *ids(await take(store))] == names
    assert list(await store.settle([done(first)])) == []


async def test_a_claim_that_is_awaited(store: FullStore) -> None:
    await add(store, job("a"))
    begun = direct(store).claim_soon(["default"], [None], 10, 1e9, "w")
    claims = await asyncio.wrap_future(begun)
    assert ids(list(claims)) == ["a"]


async def test_without_a_loop(store: FullStore) -> None:
    """A plain thread: nothing here may ask for a running loop."""
    task = await idle(store)
    found: list[str] = []

    def run() -> None:
        direct(store).add_now([job("a"), job("b")])
        claims = direct(store).claim_soon(["default"], [None], 1, 1e9, "w").result(60)
        direct(store).settle_now([done(claim) for claim in claims])
        found.extend(ids(list(claims)))

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(thread.join, 60)
    assert found == ["a"]
    await soon(task)
    assert ids(await take(store)) == ["b"]
