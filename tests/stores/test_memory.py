"""What is special to the memory store: rooms, and a heap that does not grow for ever."""

from __future__ import annotations

import gc

from tests.conformance.steps import OOPS, FullStore
from tests.fakes import FakeClock

from outlast.job import Job, done, retry
from outlast.stores import connect
from outlast.stores.memory import MemoryStore
from outlast.stores.memory.order import Line, Pile, Row
from outlast.stores.memory.registry import Registry


async def opened(url: str, namespace: str = "default", clock: FakeClock | None = None) -> FullStore:
    store = connect(url, namespace=namespace, clock=clock)
    assert isinstance(store, FullStore)
    await store.open()
    return store


async def test_without_a_name_every_call_makes_a_store_of_its_own() -> None:
    first, second = await opened("memory://"), await opened("memory://")
    await first.add([Job(id="a")])
    assert list(await second.get(["a"])) == [None]
    assert first.url != second.url


async def test_the_url_of_a_private_store_leads_to_it() -> None:
    first = await opened("memory://")
    await first.add([Job(id="a")])
    again = await opened(first.url)
    assert (await again.depth("default")).ready == 1


async def test_a_private_store_goes_with_its_last_handle() -> None:
    first = await opened("memory://")
    await first.add([Job(id="a")])
    url = first.url
    await first.close()
    del first
    gc.collect()
    assert list(await (await opened(url)).get(["a"])) == [None]
    Registry.forget(url.removeprefix("memory://"))


async def test_a_named_store_lives_as_long_as_the_process() -> None:
    first = await opened("memory://named-here")
    await first.add([Job(id="a")])
    await first.close()
    del first
    gc.collect()
    again = await opened("memory://named-here")
    assert (await again.depth("default")).ready == 1
    Registry.forget("named-here")
    assert (await (await opened("memory://named-here")).depth("default")).ready == 0
    assert (await again.depth("default")).ready == 1
    Registry.forget("named-here")


async def test_namespaces_of_a_private_store() -> None:
    first = await opened("memory://")
    await first.add([Job(id="a")])
    url = first.url
    other = await opened(url, namespace="other")
    assert list(await other.get(["a"])) == [None]
    await other.add([Job(id="b")])
    assert list(await first.get(["b"])) == [None]
    del first
    again = await opened(url)
    assert (await again.depth("default")).ready == 1, "one handle of any namespace keeps them all"
    del other, again
    gc.collect()
    assert (await (await opened(url, namespace="other")).depth("default")).ready == 0
    Registry.forget(url.removeprefix("memory://"))


def entries(pile: Pile) -> int:
    return len(pile._heap)


async def test_what_is_over_is_not_kept() -> None:
    """Stale entries are swept, so a long life with few jobs at a time stays small."""
    clock = FakeClock()
    store = await opened("memory://", clock=clock)
    assert isinstance(store, MemoryStore)
    for n in range(3000):
        job = Job(id=f"{n}", keep=0, key=f"{n}", keep_key=5, lane=f"l{n}", ttl=1e6)
        await store.add([job])
        [claim] = await store.claim(["default"], [None], 9, 10.0, "w", n % 2 == 1)
        if n % 3 == 0:
            await store.settle([retry(claim, 1, OOPS)])
            clock.advance(1)
            [claim] = await store.claim(["default"], [None], 9, 10.0, "w")
        await store.settle([done(claim)])
        await store.prune(10)
    table = store._room.table
    [line] = table.lines.values()
    piles = [line._oldest, line.later, table.leases, table._expiries, table._endings]
    piles += [line._newest] if line._newest is not None else []
    assert max(map(entries, piles)) <= 64
    assert not table.rows
    assert not table.lanes
    assert not table.running
    assert len(table.keys) <= 20
    assert not store._room.bell._waiters


def test_a_pile_skips_what_has_moved() -> None:
    line = Line("q", None)
    rows = [Row(Job(id=f"{n}"), n, line, None) for n in range(200)]
    pile = Pile()
    for row in rows:
        pile.push((row.seq,), row)
    for row in rows[:-1]:
        row.stamp += 1
    top = pile.top()
    assert top is not None
    assert top[1] is rows[-1]
    assert pile.pop() is rows[-1]
    assert pile.top() is None
