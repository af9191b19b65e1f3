"""What asyncio's queues don't have: blocks, loops, batches, purging, closing."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.dropin.steps import Queues, until
from tests.fakes import FakeClock

import outlast
from outlast.errors import ConfigurationError, StoreClosed
from outlast.queue import supply
from outlast.queue.waiters import Waiters
from outlast.stores.sqlite.writer import Writer


def make(ours: Queues, maxsize: int = 0, **options: Any) -> outlast.Queue[Any]:
    queue = ours.queue(maxsize, **options)
    assert isinstance(queue, outlast.Queue)
    return queue


async def live(queue: outlast.Queue[Any]) -> int:
    return (await queue.depth()).live


def test_a_queue_needs_a_name() -> None:
    with pytest.raises(TypeError, match="name"):
        outlast.Queue()  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 129, "a/b", None])
def test_bad_names(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="queue name"):
        outlast.Queue(name=name, url="memory://")


class NoDecode:
    name = "mine"

    def encode(self, item: Any) -> bytes:
        return b""


class NoName(NoDecode):
    name = None  # type: ignore[assignment]

    def decode(self, data: bytes) -> Any:
        return None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ack": "never"}, "'done' or 'get'"),
        ({"commit": "later"}, "'group' or 'each'"),
        ({"max_crashes": 0}, "at least 1"),
        ({"max_crashes": "3"}, "at least 1"),
        ({"url": "mysql://x"}, "no store is called"),
        ({"url": None}, "a URL is a text, not NoneType"),
        ({"url": b"memory://"}, "a URL is a text, not bytes"),
        ({"url": Path("jobs.db")}, "a URL is a text, not PosixPath"),
        ({"namespace": None}, "namespace"),
        ({"durability": "power"}, "Durability.POWER"),
        ({"maxsize": None}, "maxsize None: use a number"),
        ({"maxsize": "10"}, "maxsize '10': use a number"),
        ({"codec": 5}, "codec 5 has no encode"),
        ({"codec": NoDecode()}, "has no decode"),
        ({"codec": NoName()}, "codec name None"),
        ({"codec": NoDecode}, "give an object"),
        ({"type": 5}, "can't be carried"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    for kind in (outlast.Queue, outlast.PriorityQueue, outlast.LifoQueue):
        with pytest.raises(ConfigurationError, match=re.escape(words)) as caught:
            kind(**{"name": "x", "url": "memory://", **options})
        assert "secret" not in str(caught.value)


def test_a_key_that_is_no_function() -> None:
    with pytest.raises(ConfigurationError, match="use a function"):
        outlast.PriorityQueue(name="x", url="memory://", key=5)  # type: ignore[arg-type]


def test_without_a_url_it_is_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    queue: outlast.Queue[int] = outlast.Queue(name="x")
    assert list(tmp_path.iterdir()) == [], "nothing is made before it is used"
    queue.put_nowait(1)
    assert queue.url == f"sqlite:///{tmp_path}/outlast.db"
    assert (tmp_path / "outlast.db").exists()
    assert queue.get_nowait() == 1
    queue.task_done()
    queue._line.close_now()


async def test_a_block_that_ends_well_settles(ours: Queues) -> None:
    queue = make(ours)
    await queue.put("a")
    async with queue.item() as item:
        assert item == "a"
        assert await live(queue) == 1
    await asyncio.wait_for(queue.join(), 60)
    assert await live(queue) == 0


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
async def test_a_block_that_raises_gives_back(ours: Queues, error: type[BaseException]) -> None:
    queue = make(ours)
    await queue.put_many(["a", "b"])
    with pytest.raises(error):
        async with queue.item():
            raise error
    assert queue._unfinished_tasks == 2
    other = make(ours, name=queue.name)
    await queue.close()
    assert [other.get_nowait(), other.get_nowait()] == ["a", "b"]


async def test_a_block_in_which_task_done_is_called_settles_once(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many(["a", "b"])
    async with queue.item():
        queue.task_done()
    assert queue._unfinished_tasks == 1
    with pytest.raises(KeyError):
        await _done_and_fails(queue)
    await asyncio.wait_for(queue.join(), 60)
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


async def _done_and_fails(queue: outlast.Queue[Any]) -> None:
    async with queue.item():
        queue.task_done()
        raise KeyError


async def test_a_loop_settles_each_item_when_the_next_is_asked_for(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many([1, 2, 3])
    queue.shutdown()
    seen = []
    async for item in aiter(aiter(queue)):  # an iterator is its own
        seen.append(item)
        await until(lambda: not queue._line.settling)
        assert await live(queue) == 4 - item
    assert seen == [1, 2, 3]
    await asyncio.wait_for(queue.join(), 60)
    assert await live(queue) == 0


async def test_the_item_a_loop_is_left_with_is_not_done(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many([1, 2, 3])
    async for item in queue:
        if item == 2:
            break
    await queue.close()
    assert [queue.get_nowait(), queue.get_nowait()] == [2, 3]


async def test_two_loops_share_the_items(ours: Queues) -> None:
    queue = make(ours)
    seen: list[int] = []

    async def consume() -> None:
        async for item in queue:
            seen.append(item)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(consume())
        group.create_task(consume())
        await queue.put_many(list(range(30)))
        await queue.join()
        queue.shutdown()
    assert sorted(seen) == list(range(30))


async def test_get_many(ours: Queues) -> None:
    queue = make(ours)
    await queue.put_many(list(range(10)))
    assert await queue.get_many(4) == [0, 1, 2, 3]
    assert await queue.get_many(100) == [4, 5, 6, 7, 8, 9]
    waiting = asyncio.create_task(queue.get_many(3))
    await until(lambda: len(queue._getters) == 1)
    await queue.put("late")
    assert await asyncio.wait_for(waiting, 60) == ["late"]
    for _ in range(11):
        queue.task_done()
    await asyncio.wait_for(queue.join(), 60)
    with pytest.raises(ValueError, match="limit"):
        await queue.get_many(0)


async def test_get_many_of_its_sisters(ours: Queues) -> None:
    priority, lifo = ours.priority(), ours.lifo()
    for queue in (priority, lifo):
        assert isinstance(queue, outlast.Queue)
        await queue.put_many([3, 1, 2])
    got: list[int] = []
    while len(got) < 3:
        got += await priority.get_many(2)  # type: ignore[attr-defined]
    assert got == [1, 2, 3]
    got = []
    while len(got) < 3:
        got += await lifo.get_many(2)  # type: ignore[attr-defined]
    assert got == [2, 1, 3]


async def test_puts_of_one_moment_share_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(Queues("file-group", tmp_path))
    await queue.put("first")
    transact, commits = Writer._transact, 0

    def counted(self: Writer, group: list[Any]) -> int:
        nonlocal commits
        commits += 1
        return transact(self, group)

    monkeypatch.setattr(Writer, "_transact", counted)
    await asyncio.gather(*(queue.put(number) for number in range(100)))
    assert commits == 1
    await queue.put("alone")
    assert commits == 2
    assert (await queue.depth()).ready == 102
    await queue.close()


async def test_put_many_is_all_or_nothing(ours: Queues) -> None:
    queue = make(ours)
    with pytest.raises(TypeError):
        await queue.put_many([1, object()])
    assert queue.empty()
    await queue.put_many([])
    assert queue.empty()


async def test_put_many_into_a_small_queue(ours: Queues) -> None:
    queue = make(ours, 3)
    putting = asyncio.create_task(queue.put_many(list(range(10))))
    got: list[int] = []
    while len(got) < 10:
        got.append(await asyncio.wait_for(queue.get(), 60))
        assert queue.qsize() <= 3
    await putting
    assert got == list(range(10))
    for item in got:
        queue.task_done(item)


async def test_purge(ours: Queues) -> None:
    queue = make(ours)
    assert await queue.purge() == 0
    await queue.put_many(list(range(10)))
    assert await queue.get() == 0
    assert await queue.purge() == 9
    assert queue.empty()
    queue.task_done()
    await asyncio.wait_for(queue.join(), 60)
    await queue.put(11)
    assert await queue.get() == 11
    queue.task_done()


async def test_purge_makes_room(ours: Queues) -> None:
    queue = make(ours, 1)
    await queue.put(1)
    putting = asyncio.create_task(queue.put(2))
    await until(lambda: len(queue._putters) == 1)
    assert await queue.purge() == 1
    await asyncio.wait_for(putting, 60)
    assert queue.get_nowait() == 2
    queue.task_done()


async def test_a_closed_queue_opens_anew(ours: Queues) -> None:
    async with make(ours) as queue:
        await queue.put_many([1, 2, 3])
        await queue.get()
        queue.task_done()
        await queue.get()
    async with queue:
        assert queue._unfinished_tasks == 2
        assert [await queue.get(), await queue.get()] == [2, 3]
        queue.task_done()
        queue.task_done()
    assert queue.qsize() == 0


async def test_those_who_wait_are_told_of_the_close(ours: Queues) -> None:
    queue = make(ours)
    waiting = asyncio.create_task(queue.get())
    await until(lambda: len(queue._getters) == 1 and queue._line.opened)
    await queue.close()
    with pytest.raises(StoreClosed, match="was closed"):
        await asyncio.wait_for(waiting, 60)


async def test_names_and_namespaces_keep_apart(ours: Queues) -> None:
    queues = [make(ours, name="a"), make(ours, name="b"), make(ours, name="a", namespace="other")]
    for number, queue in enumerate(queues):
        await queue.put(number)
    for number, queue in enumerate(queues):
        assert queue.get_nowait() == number
        assert queue.empty()
        queue.task_done()


async def test_items_in_memory_go_back_when_nobody_asks(
    ours: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two objects, as in two processes: what one has taken ahead must not starve the other."""
    monkeypatch.setattr(supply, "QUICK", 60.0)  # so that some are ahead on a busy machine too
    one, other = make(ours, name="x"), make(ours, name="x")
    await one.put_many(list(range(100)))
    for number in range(9):
        assert await one.get() == number
        one.task_done()
    assert len(one._line.supply.window) > 1
    rest = [await asyncio.wait_for(other.get(), 60) for _ in range(91)]
    assert sorted(rest) == list(range(9, 100))
    for item in rest:
        other.task_done(item)


@pytest.mark.parametrize("call", ["get_nowait", "qsize", "close"])
async def test_a_claim_on_its_way_is_received_by_who_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Else `get_nowait` would hand out the second item before the first."""
    queue = make(Queues("memory-group", tmp_path))
    await queue.put_many([1, 2, 3])
    store: Any = queue._line.store
    real = store.claim_soon

    def slow(*arguments: Any) -> Future[Any]:
        arrival: Future[Any] = Future()
        claims = real(*arguments).result()
        threading.Timer(0.05, arrival.set_result, [claims]).start()
        return arrival

    monkeypatch.setattr(store, "claim_soon", slow)
    waiting = asyncio.create_task(queue.get())
    await until(lambda: queue._line.supply._flight is not None)
    if call == "get_nowait":
        assert queue.get_nowait() == 1
        assert await asyncio.wait_for(waiting, 60) == 2
        queue.task_done(1)
        queue.task_done(2)
    elif call == "qsize":
        assert queue.qsize() == 3
        assert await asyncio.wait_for(waiting, 60) == 1
        queue.task_done()
    else:
        await queue.close()
        with pytest.raises(StoreClosed):
            await waiting
        assert [queue.get_nowait() for _ in range(3)] == [1, 2, 3]


async def test_few_of_those_who_wait_come_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifty that wait, the first takes all: it never waits for anything else."""
    queue = make(Queues("memory-group", tmp_path))
    stand, stood = Waiters._stand, 0

    def counted(self: Waiters, *arguments: Any) -> None:
        nonlocal stood
        stood += 1
        stand(self, *arguments)

    monkeypatch.setattr(Waiters, "_stand", counted)
    got: list[int] = []

    async def consume() -> None:
        while True:
            got.append(await queue.get())
            queue.task_done()

    consumers = [asyncio.create_task(consume()) for _ in range(50)]
    await until(lambda: len(queue._getters) == 50)
    await queue.put_many(list(range(40)))
    await until(lambda: len(got) == 40 and len(queue._getters) == 50)
    assert got == list(range(40))
    assert stood <= 50 + 10
    for consumer in consumers:
        consumer.cancel()
    await asyncio.wait(consumers)
    await queue.close()


async def test_what_is_taken_ahead_is_bounded(
    ours: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "QUICK", 60.0)  # so that many are ahead on a busy machine too
    queue = make(ours)
    for start in range(0, 4000, 1000):
        await queue.put_many(list(range(start, start + 1000)))
    most = 0
    for number in range(4000):
        assert await queue.get() == number
        queue.task_done()
        most = max(most, len(queue._line.supply.window))
    assert 100 < most <= 1000


async def test_big_items_are_taken_ahead_in_smaller_numbers(tmp_path: Path) -> None:
    """Here no time passes, so that the window would grow as fast as it may."""
    queue = make(Queues("memory-group", tmp_path), clock=FakeClock())
    await queue.put_many(["x" * 300_000] * 150)
    most = 0
    for _ in range(150):
        await queue.get()
        queue.task_done()
        most = max(most, len(queue._line.supply.window))
    assert 10 < most <= 40


async def test_a_queue_with_a_limit_takes_nothing_ahead(ours: Queues) -> None:
    queue = make(ours, 50)
    await queue.put_many(list(range(50)))
    for number in range(50):
        assert await queue.get() == number
        queue.task_done()
        assert not len(queue._line.supply.window)
