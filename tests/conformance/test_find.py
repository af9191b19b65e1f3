"""`get`, `find` and `lines`: jobs as they stand, pages that neither repeat nor skip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.steps import OOPS, add, ids, job, start, take

from outlast.job import Depth, Status, dead, done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_get_is_aligned(store: FullStore) -> None:
    await add(store, job("a", payload=b"A"), job("b", payload=b"B"))
    found = await store.get(["b", "missing", "a", "b"])
    assert [each and each.payload for each in found] == [b"B", None, b"A", b"B"]
    assert list(await store.get([])) == []


async def test_get_many(store: FullStore) -> None:
    names = await add(store, *(job() for _ in range(1500)))
    assert [each.id for each in await store.get(names[::-1]) if each] == names[::-1]


async def test_newest_first(store: FullStore, clock: FakeClock) -> None:
    for name in ("b", "a", "c"):
        await add(store, job(name, priority=-ord(name) % 7))
        clock.advance(1)
    found = list(await store.find())
    assert ids(found) == ["c", "a", "b"]
    assert found == [each for each in await store.get(["c", "a", "b"]) if each]


async def test_filters(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("1", queue="a", task="t"), job("2", queue="b", task="t", key="k"))
    clock.advance(10)
    later = clock.now()
    await add(store, job("3", queue="a", key="k"), job("4", queue="a", task="u", delay=60))
    await start(store, job("5", queue="c"))
    await store.cancel(["1"])
    assert ids(await store.find(queue="a")) == ["4", "3", "1"]
    assert ids(await store.find(task="t")) == ["2", "1"]
    assert ids(await store.find(key="k")) == ["3", "2"]
    assert ids(await store.find(status=[Status.QUEUED])) == ["4", "3", "2"]
    assert ids(await store.find(status=[Status.RUNNING, Status.CANCELLED])) == ["5", "1"]
    assert ids(await store.find(since=later)) == ["5", "4", "3"]
    assert ids(await store.find(until=later - 1)) == ["2", "1"]
    assert ids(await store.find(since=later, until=later, queue="a", task="u")) == ["4"]
    assert ids(await store.find(queue="a", status=[Status.DEAD])) == []
    assert ids(await store.find(queue="none")) == []


async def test_pages(store: FullStore) -> None:
    names = await add(store, *(job(queue="ab"[n % 2]) for n in range(60)))
    seen: list[str] = []
    after = None
    while page := ids(await store.find(queue="a", limit=7, after=after)):
        assert len(page) <= 7
        seen += page
        after = page[-1]
    assert seen == names[::2][::-1]


async def test_pages_while_jobs_come_and_end(store: FullStore) -> None:
    names = await add(store, *(job() for _ in range(10)))
    first = ids(await store.find(limit=4))
    await add(store, job(), job())
    claims = await take(store)
    await store.settle([done(claim) for claim in claims])
    second = ids(await store.find(limit=4, after=first[-1]))
    assert first + second == names[::-1][:8]


async def test_a_page_that_is_gone(store: FullStore) -> None:
    names = await add(store, *(job() for _ in range(10)))
    first = ids(await store.find(limit=4))
    await store.cancel([first[-1]])
    await store.purge("default", [Status.CANCELLED])
    assert ids(await store.find(limit=3, after=first[-1])) == names[::-1][4:7]


async def test_no_limit_no_jobs(store: FullStore) -> None:
    await add(store, job())
    assert list(await store.find(limit=0)) == []


async def test_find_after_reopening(store: FullStore, place: Place) -> None:
    running = await start(store, job("a"))
    await store.settle([dead(running, OOPS)])
    [found] = await (await place.reopen()).find(status=[Status.DEAD])
    assert (found.id, found.failure, found.attempt) == ("a", OOPS, 1)


async def test_each_namespace_alone(store: FullStore, place: Place) -> None:
    await add(store, job("a"))
    other = await place.open("other")
    assert list(await other.find()) == []
    assert list(await other.lines()) == []
    assert list(await other.get(["a"])) == [None]


async def test_lines(store: FullStore, clock: FakeClock) -> None:
    assert list(await store.lines()) == []
    first = clock.now()
    await add(store, job("1", queue="a", task="t"), job("2", queue="b"))
    clock.advance(5)
    await add(store, job("3", queue="a", task="t"), job("4", queue="a", task="u", delay=60))
    await add(store, job("5", queue="b", priority=1))
    await store.pause("b")
    lines = {(line.queue, line.task): line for line in await store.lines()}
    assert set(lines) == {("a", "t"), ("a", "u"), ("b", None)}
    assert lines["a", "t"].depth == Depth(ready=2)
    assert lines["a", "u"].depth == Depth(delayed=1)
    assert lines["b", None].depth == Depth(ready=2)
    assert [lines[name].paused for name in lines if name[0] == "b"] == [True]
    assert not lines["a", "t"].paused
    assert lines["a", "t"].oldest == first
    assert lines["b", None].oldest == clock.now()
    clock.advance(60)
    lines = {(line.queue, line.task): line for line in await store.lines()}
    assert lines["a", "u"].depth == Depth(ready=1)


async def test_an_empty_line(store: FullStore) -> None:
    running = await start(store, job())
    [line] = await store.lines()
    assert (line.depth, line.oldest) == (Depth(running=1), None)
    await store.settle([done(running)])
    [line] = await store.lines()
    assert (line.depth, line.oldest) == (Depth(done=1), None)
