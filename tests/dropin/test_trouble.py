"""Stores that fail, leases, processes that die of an item: nothing hangs and nothing is lost."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.children import child
from tests.dropin.steps import Queues, until
from tests.fakes import FakeClock

import outlast
from outlast.errors import (
    EnqueueUncertain,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)
from outlast.job import Death, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def queues(tmp_path: Path) -> Queues:
    return Queues("memory-group", tmp_path)


class Failing:
    """Lets one call of a store fail as often as it is told to."""

    def __init__(self, queue: outlast.Queue[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.store: Any = queue._line.store
        self.monkeypatch = monkeypatch
        self.calls = 0

    def make(self, name: str, error: Callable[[], Exception], times: int = 1000) -> None:
        real = getattr(self.store, name)
        self.calls = 0

        async def fails(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls <= times:
                raise error()
            return await real(*arguments, **options)

        def fails_now(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls <= times:
                raise error()
            return real(*arguments, **options)

        blocking = name.endswith(("_now", "_soon"))
        self.monkeypatch.setattr(self.store, name, fails_now if blocking else fails)


@pytest.fixture
def failing(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> Callable[[outlast.Queue[Any]], Failing]:
    return lambda queue: Failing(queue, monkeypatch)


async def test_a_put_that_fails_raises_and_the_next_one_works(
    queues: Queues, failing: Callable[[outlast.Queue[Any]], Failing]
) -> None:
    queue: Any = queues.queue()
    await queue.put("first")
    failing(queue).make("add", lambda: StoreFull("no space left"), times=1)
    puts = await asyncio.gather(*(queue.put(n) for n in range(3)), return_exceptions=True)
    assert [type(error) for error in puts] == [StoreFull] * 3
    assert len({id(error) for error in puts}) == 3, "each has a traceback of its own"
    await queue.put("second")
    assert [queue.get_nowait(), queue.get_nowait()] == ["first", "second"]
    assert queue._unfinished_tasks == 2


async def test_an_uncertain_put_says_which_item_it_was(
    queues: Queues, failing: Callable[[outlast.Queue[Any]], Failing]
) -> None:
    queue: Any = queues.queue()
    await queue.put("first")
    failing(queue).make("add", lambda: EnqueueUncertain("who knows", ["a", "b"]), times=1)
    errors = await asyncio.gather(queue.put(1), queue.put(2), return_exceptions=True)
    ids = [error.ids for error in errors if isinstance(error, EnqueueUncertain)]
    assert [len(each) for each in ids] == [1, 1]
    assert ids[0] != ids[1]


async def test_a_put_that_fails_while_it_is_cancelled_is_cancelled(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Any = queues.queue()
    await queue.put("first")
    release = asyncio.Event()

    async def slow(*_: Any) -> Any:
        await release.wait()
        raise StoreUnavailable("gone")

    monkeypatch.setattr(queue._line.store, "add", slow)
    put = asyncio.create_task(queue.put("second"))
    for _ in range(5):
        await asyncio.sleep(0)
    put.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not put.done(), "it waits for the outcome"
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await put


async def test_a_timeout_that_came_too_late_for_a_put_is_not_delivered_later(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block of the timeout has ended well; what comes after it must not be cancelled."""
    queue: Any = queues.queue()
    await queue.put("first")
    release, real = asyncio.Event(), queue._line.store.add

    async def slow(*arguments: Any) -> Any:
        await release.wait()
        return await real(*arguments)

    monkeypatch.setattr(queue._line.store, "add", slow)

    async def work() -> bool:
        async with asyncio.timeout(0.001) as limit:
            await queue.put("second")
        for _ in range(10):
            await asyncio.sleep(0)
        return limit.expired()

    task = asyncio.create_task(work())
    await until(task.cancelling)
    release.set()
    assert await task
    assert queue.qsize() == 2


async def test_a_second_cancellation_is_obeyed_at_once(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Any = queues.queue()
    await queue.put("first")

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(queue._line.store, "add", never)
    put = asyncio.create_task(queue.put("second"))
    for _ in range(2):
        for _ in range(5):
            await asyncio.sleep(0)
        assert not put.done()
        put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put


async def test_getters_are_told_what_went_wrong(
    queues: Queues, failing: Callable[[outlast.Queue[Any]], Failing]
) -> None:
    queue: Any = queues.queue()
    await queue.put(1)
    failing(queue).make("claim_soon", lambda: StoreUnavailable("the disk is gone"), times=2)
    gets = await asyncio.gather(queue.get(), queue.get(), return_exceptions=True)
    assert [type(error) for error in gets] == [StoreUnavailable] * 2
    with pytest.raises(StoreUnavailable):
        queue.get_nowait()
    assert await asyncio.wait_for(queue.get(), 60) == 1
    queue.task_done()


async def test_a_store_that_cant_be_opened(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"this is no database, but it is long enough to be one" * 50)
    queue: Any = outlast.Queue(name="q", url=f"sqlite:///{tmp_path}/x.db?durability=process")
    for call in (queue.get, lambda: queue.put(1), queue.join, queue.depth):
        with pytest.raises(StoreDamaged):
            await asyncio.wait_for(call(), 60)
    with pytest.raises(StoreDamaged):
        queue.qsize()


async def test_settling_is_tried_again_until_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    queue: Any = Queues("memory-group", tmp_path).queue(clock=clock)
    await queue.put(1)
    await queue.get()
    trouble = Failing(queue, monkeypatch)
    trouble.make("settle", lambda: StoreUnavailable("locked"), times=3)
    queue.task_done()
    join = asyncio.create_task(queue.join())
    for expected in (1, 2, 3):
        await until(lambda expected=expected: trouble.calls == expected)  # type: ignore[misc]
        await until(lambda: clock.sleepers)
        clock.advance(5.0)
    await asyncio.wait_for(join, 60)
    assert trouble.calls == 4
    assert "can't be settled yet: locked" in caplog.text


async def test_join_is_told_of_what_will_not_get_better(
    queues: Queues, failing: Callable[[outlast.Queue[Any]], Failing]
) -> None:
    queue: Any = queues.queue()
    await queue.put(1)
    await queue.get()
    failing(queue).make("settle", lambda: StoreDamaged("a broken page"))
    queue.task_done()
    with pytest.raises(StoreDamaged):
        await asyncio.wait_for(queue.join(), 60)


async def test_what_is_in_hand_is_renewed(tmp_path: Path) -> None:
    """By the clock: an item that is handled for days is not given to another."""
    clock = FakeClock()
    made = Queues("memory-group", tmp_path)
    queue: Any = made.queue(name="x", clock=clock)
    other: Any = made.queue(name="x", clock=clock)
    await queue.put("slow")
    get = asyncio.create_task(queue.get())
    assert await get == "slow"
    for _ in range(20):
        await until(lambda: clock.sleepers)
        clock.advance(8 * 3600.0)
        store = queue._line.store
        await store.recover(100)
    assert other.empty()
    queue.task_done()
    await asyncio.wait_for(queue.join(), 60)


async def test_what_was_lost_to_another_is_told(
    queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    queue: Any = queues.queue()
    await queue.put("a")
    assert await queue.get() == "a"
    store = queue._line.store
    await store.recover_worker(queue._line.supply.worker, Death())

    async def another() -> Any:
        return await queue.get()

    assert await asyncio.create_task(another()) == "a"
    queue.task_done()
    await until(lambda: not queue._line.settling)
    assert "not ours any more" in caplog.text
    assert (await queue.depth()).live == 1


async def test_what_a_cancelled_sender_has_settled_is_not_told_as_lost(
    queues: Queues, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So it is at the end of `asyncio.run`, which cancels all tasks: nothing is handled twice."""
    queue: Any = queues.queue()
    await queue.put("a")
    assert await queue.get() == "a"
    real, settled = queue._line.store.settle, asyncio.Event()

    async def settle(verdicts: Any) -> Any:
        await real(verdicts)
        settled.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(queue._line.store, "settle", settle)
        queue.task_done()
        await asyncio.wait_for(settled.wait(), 60)
        sender = queue._line.settling._sender
        sender.cancel()
        await asyncio.wait([sender])
    await queue.close()
    assert caplog.text == ""
    assert queue.qsize() == 0


@pytest.mark.timeout(240)
def test_an_item_that_processes_die_of_is_buried(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db?durability=process"
    with child("""
        queue = Queue(name="q", url=URL, max_crashes=3)
        await queue.put("poison"); await queue.put("good")
    """, url) as program:  # fmt: skip
        program.end()
    for _ in range(3):
        with child("""
            queue = Queue(name="q", url=URL, max_crashes=3)
            say(await queue.get())
            await forever()
        """, url) as program:  # fmt: skip
            program.expect("poison")
            program.kill()

    async def look() -> None:
        async with outlast.Queue[str](name="q", url=url, max_crashes=3) as queue:
            assert await queue.get() == "good"
            queue.task_done()
            await asyncio.wait_for(queue.join(), 60)
            depth = await queue.depth()
            assert (depth.live, depth.dead) == (0, 1)
            store: Any = queue._line.store
            (dead,) = await store.find(status=[Status.DEAD])
            assert dead.payload == b'"poison"'
            assert dead.failure.kind == "crash"

    asyncio.run(look())


def test_without_max_crashes_an_item_comes_for_ever(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db?durability=process"
    with child('await Queue(name="q", url=URL).put("a")', url) as program:
        program.end()
    for _ in range(5):
        with child("""
            say(await Queue(name="q", url=URL).get())
            await forever()
        """, url) as program:  # fmt: skip
            program.expect("a")
            program.kill()


async def test_a_renewal_that_fails_is_tried_again_and_what_is_lost_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    queue: Any = Queues("memory-group", tmp_path).queue(clock=clock)
    await queue.put("slow")
    assert await asyncio.create_task(queue.get()) == "slow"
    trouble = Failing(queue, monkeypatch)
    trouble.make("renew", lambda: StoreUnavailable("locked"), times=1)
    for calls in (1, 2):
        await until(lambda: clock.sleepers)
        clock.advance(8 * 3600.0)
        await until(lambda calls=calls: trouble.calls == calls)  # type: ignore[misc]
    assert "can't be renewed: locked" in caplog.text
    assert "lost" not in caplog.text
    await queue._line.store.recover_worker(queue._line.supply.worker, Death())
    await until(lambda: clock.sleepers)
    clock.advance(8 * 3600.0)
    await until(lambda: "lost 1 claims to others" in caplog.text)


async def test_a_join_is_not_misled_by_an_old_look_at_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is read while an item is settled: what was read is out of date."""
    queue: Any = Queues("memory-each", tmp_path).queue()
    await queue.put(1)
    await queue.get()
    release, looked = asyncio.Event(), asyncio.Event()
    real = queue._line.store.depth

    async def slow(name: str) -> Any:
        found = await real(name)
        looked.set()
        await release.wait()
        return found

    monkeypatch.setattr(queue._line.store, "depth", slow)
    join = asyncio.create_task(queue.join())
    await looked.wait()
    queue.task_done()
    release.set()
    await asyncio.wait_for(join, 60)
    for _ in range(10):
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="too many"):
        queue.task_done()


def test_a_close_that_can_settle_nothing_leaves_it_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The life sign stays behind without its lock: others see that its claims are free."""
    made = Queues("file-group", tmp_path)
    queue: Any = made.queue(name="x")
    for number in range(3):
        queue.put_nowait(number)
    assert queue.get_nowait() == 0
    Failing(queue, monkeypatch).make("settle_now", lambda: StoreUnavailable("no"))
    with pytest.raises(StoreUnavailable):
        queue._line.close_now()
    other: Any = made.queue(name="x")
    assert [other.get_nowait() for _ in range(3)] == [0, 1, 2]
    assert list((tmp_path / ".queues.db-outlast").glob("*.life")) != []
    made.close()


def test_without_a_life_sign_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise PermissionError(errno.EACCES, "read-only folder")

    made = Queues("file-group", tmp_path)
    queue: Any = made.queue()
    queue.put_nowait(1)
    with monkeypatch.context() as patch:
        patch.setattr("outlast.lifeline.Lifeline._make", fails)
        with pytest.raises(StoreUnavailable, match="read-only folder"):
            queue.get_nowait()
    assert queue.get_nowait() == 1
    queue.task_done()
    made.close()


def test_a_settlement_that_fails_within_the_call_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Any = Queues("memory-each", tmp_path).queue()
    queue.put_nowait(1)
    queue.put_nowait(2)
    assert [queue.get_nowait(), queue.get_nowait()] == [1, 2]
    Failing(queue, monkeypatch).make("settle_now", lambda: StoreUnavailable("no"), times=1)
    with pytest.raises(StoreUnavailable):
        queue.task_done(1)
    queue.task_done(2)
    assert asyncio.run(queue.depth()).live == 0


@pytest.mark.parametrize("kind", ["memory-group", "memory-each"])
async def test_an_item_that_cant_leave_the_store_is_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    queue: Any = Queues(kind, tmp_path).queue(ack="get")
    await queue.put(1)
    name = "settle_now" if kind.endswith("each") else "settle"
    Failing(queue, monkeypatch).make(name, lambda: StoreUnavailable("no"), times=1)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(queue.get(), 60)
    assert await asyncio.wait_for(queue.get(), 60) == 1
    assert (await queue.depth()).live == 0


async def test_put_many_that_loses_the_race_for_room_tries_again(
    queues: Queues, failing: Callable[[outlast.Queue[Any]], Failing]
) -> None:
    queue: Any = queues.queue(5)
    await queue.put(0)
    failing(queue).make("add", asyncio.QueueFull, times=2)
    await asyncio.wait_for(queue.put_many([1, 2]), 60)
    assert [queue.get_nowait() for _ in range(3)] == [0, 1, 2]


async def test_a_store_that_cant_delete_says_so(
    queues: Queues, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue: Any = queues.queue()
    await queue.put(1)

    class WhatNoStoreIs:
        def brew_tea(self) -> None: ...

    monkeypatch.setattr("outlast.queue.queue.Ledger", WhatNoStoreIs)
    with pytest.raises(Unsupported, match="can't delete"):
        await queue.purge()
    assert queue.qsize() == 1
