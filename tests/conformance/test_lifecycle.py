"""`open` and `close`: often, in any order, and nothing works before or after."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import add, ids, job, start, take

from outlast.errors import StoreClosed
from outlast.job import Claim, Death, Status, done
from outlast.store import Direct, Durability, WorkerInfo, offers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore

CLAIM = Claim(job("x"), bytes(24))

CALLS: dict[str, Callable[[Any], Any]] = {
    "add": lambda store: store.add([job("x")]),
    "claim": lambda store: store.claim(["q"], [None], 1, 10.0, "w"),
    "settle": lambda store: store.settle([done(CLAIM)]),
    "renew": lambda store: store.renew([CLAIM], 10.0),
    "recover": lambda store: store.recover(1),
    "recover_worker": lambda store: store.recover_worker("w", Death()),
    "prune": lambda store: store.prune(1),
    "wait": lambda store: store.wait(["q"], 0),
    "depth": lambda store: store.depth("q"),
    "get": lambda store: store.get(["x"]),
    "find": lambda store: store.find(),
    "cancel": lambda store: store.cancel(["x"]),
    "revive": lambda store: store.revive(["x"]),
    "purge": lambda store: store.purge("q", [Status.QUEUED]),
    "finished": lambda store: store.finished(["x"], 0),
    "lines": lambda store: store.lines(),
    "pause": lambda store: store.pause("q"),
    "beat": lambda store: store.beat(WorkerInfo(id="w", host="h", pid=1)),
    "leave": lambda store: store.leave("w"),
    "workers": lambda store: store.workers(),
    "backup": lambda store: store.backup(Path("never-made.db")),
}


@pytest.mark.parametrize("call", CALLS)
async def test_not_before_open_and_not_after_close(place: Place, call: str) -> None:
    store = place.connect()
    with pytest.raises(StoreClosed):
        await CALLS[call](store)
    await store.open()
    await store.close()
    with pytest.raises(StoreClosed, match="open"):
        await CALLS[call](store)


async def test_open_twice_and_close_twice(place: Place) -> None:
    store = place.connect()
    await store.close()
    await store.open()
    await store.open()
    await add(store, job("a"))
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.depth("default")
    await store.open()
    assert (await store.depth("default")).queued == 1


async def test_open_again_after_close(store: FullStore) -> None:
    await add(store, job("a"))
    await store.close()
    await store.open()
    assert ids(await take(store)) == ["a"]


async def test_what_was_accepted_is_there_after_close(store: FullStore, place: Place) -> None:
    running = await start(store, job("a"))
    calls: list[asyncio.Task[Any]] = [
        asyncio.ensure_future(store.add([job(f"{n}")])) for n in range(20)
    ]
    calls.append(asyncio.ensure_future(store.settle([done(running)])))
    await asyncio.sleep(0)
    await store.close()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [answer for answer in answers if isinstance(answer, BaseException)] == []
    store = await place.open()
    assert len(await take(store)) == 20


async def test_many_open_at_once(place: Place) -> None:
    stores = [place.connect() for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for n, store in enumerate(stores):
        await add(store, job(f"{n}"))
    assert len(await take(stores[0])) == 6


async def test_what_is_known_of_a_store(store: FullStore, place: Place) -> None:
    broker, _, kind = place.kind.rpartition("+")
    assert store.durability == (Durability.MEMORY if kind == "memory" else Durability.PROCESS)
    assert store.url.startswith("amqp://" if broker else f"{kind}://")
    assert (store.lifelines is None) == (kind == "memory")
    assert offers(store, Direct)


async def test_its_url_opens_the_same_jobs(store: FullStore, place: Place) -> None:
    await add(store, job("a"))
    place.url = store.url
    assert ids(await take(await place.open())) == ["a"]
