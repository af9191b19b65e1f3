"""`purge`: all of a queue in the states named, keys included, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import ENDED, OOPS, add, get, ids, job, start, take

from outlast.errors import JobNotFound
from outlast.job import Status, dead, done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_one_queue_only(store: FullStore, place: Place) -> None:
    for queue in ("a", "b"):
        await add(store, *(job(f"{queue}{n}", queue=queue, task=f"t{n % 3}") for n in range(30)))
    await add(store, *(job(queue="a", delay=60) for _ in range(20)))
    [running] = await take(store, 1, queues=["a"], tasks=["t0"])
    assert await store.purge("a", [Status.QUEUED]) == 49
    store = await place.reopen()
    assert (await store.depth("a")).queued == 0
    assert (await store.depth("b")).queued == 30
    assert await take(store, queues=["a"], tasks=["t0", "t1", "t2", None]) == []
    assert list(await store.settle([done(running)])) == []


@pytest.mark.parametrize("status", [Status.QUEUED, *ENDED])
async def test_one_state_only(store: FullStore, status: Status) -> None:
    [ended, buried, _] = await start(store, job("done"), job("dead"), job("running"))
    await store.settle([done(ended), dead(buried, OOPS)])
    await add(store, job("queued"), job("cancelled"))
    await store.cancel(["cancelled"])
    assert await store.purge("default", [status]) == 1
    names = ["done", "dead", "running", "queued", "cancelled"]
    gone = [name for name, found in zip(names, await store.get(names), strict=True) if not found]
    assert gone == [status.value]


async def test_never_what_is_running(store: FullStore) -> None:
    running = await start(store, job("a"))
    assert await store.purge("default", [Status.RUNNING]) == 0
    assert await store.purge("default", list(Status)) == 0
    assert list(await store.settle([done(running)])) == []


async def test_nothing_named(store: FullStore) -> None:
    await add(store, job("a"))
    assert await store.purge("default", []) == 0
    assert ids(await take(store)) == ["a"]


async def test_a_dry_run_deletes_nothing(store: FullStore) -> None:
    await add(store, job("a"), job("b", delay=5))
    assert await store.purge("default", [Status.QUEUED], dry_run=True) == 2
    assert (await store.depth("default")).queued == 2
    assert await store.purge("default", [Status.QUEUED]) == 2


async def test_keys_go_with_it(store: FullStore) -> None:
    running = await start(store, job("a", key="k", digest=b"1"))
    await add(store, job("b", key="k2", digest=b"1"))
    await store.settle([done(running)])
    assert await store.purge("default", [Status.QUEUED, Status.DONE]) == 2
    await add(store, job("c", key="k", digest=b"2"), job("d", key="k2", digest=b"2"))


async def test_only_its_own_keys_go(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", key="k", keep_key=5))
    await store.settle([done(running)])
    clock.advance(10)
    await add(store, job("b", key="k"))
    assert await store.purge("default", [Status.DONE]) == 1
    [again] = await store.add([job(key="k")])
    assert (again.id, again.created) == ("b", False)


async def test_ids_are_free_again(store: FullStore) -> None:
    await add(store, job("a"))
    await store.purge("default", [Status.QUEUED])
    await add(store, job("a"))
    assert (await get(store, "a")).status is Status.QUEUED


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_queue_that_never_was(store: FullStore, place: Place, dry_run: bool) -> None:
    await add(store, job())
    with pytest.raises(JobNotFound, match="defualt"):
        await store.purge("defualt", [Status.QUEUED], dry_run=dry_run)
    with pytest.raises(JobNotFound):
        await (await place.open("other")).purge("default", [Status.QUEUED], dry_run=dry_run)


async def test_an_empty_queue_that_was_used(store: FullStore) -> None:
    running = await start(store, job(keep=0))
    await store.settle([done(running)])
    assert await store.purge("default", list(Status)) == 0


async def test_many(store: FullStore) -> None:
    await add(store, *(job(key=f"k{n}") for n in range(6000)))
    assert await store.purge("default", [Status.QUEUED]) == 6000
    await add(store, job(key="k17"))
