"""Plain functions in threads, and the thread that looks after a worker whose loop is blocked."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.engine.rig import Rig, until
from tests.engine.service import wait_until
from tests.fakes import FakeClock

from outlast import Hooks, JobCancelled, JobFailed, Outlast, Status, current
from outlast.stores.sqlite.schema import READY
from outlast.stores.sqlite.store import SqliteStore
from outlast.worker import watch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(real=True)
    async with rig.app:
        yield rig


async def test_they_run_beside_the_loop_as_many_as_there_are_slots(rig: Rig) -> None:
    together = threading.Barrier(3)

    @rig.app.task(name="meets")
    def meets(n: int) -> int:
        together.wait(60)
        assert threading.current_thread() is not threading.main_thread()
        return n

    handles = [await meets.enqueue(n) for n in range(3)]
    async with rig.worker(renew_on="thread", concurrency=3):
        assert [await handle.result(60) for handle in handles] == [0, 1, 2]


async def test_they_see_the_job_and_can_report(rig: Rig) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    go_on = threading.Event()

    @rig.app.task(name="looks")
    def looks() -> str:
        current().progress(0.25, variable.get())
        variable.set("changed")
        go_on.wait(60)
        return current().id

    handle = await looks.enqueue()
    async with rig.worker(renew_on="thread", lease=0.3):

        async def noted() -> bool:
            note = (await rig.job(handle.id)).progress
            return note is not None and (note.value, note.text) == (0.25, "unset")

        await until(noted)
        go_on.set()
        assert await handle.result(60) == handle.id
    assert variable.get() == "unset"


@pytest.mark.parametrize("error", [SystemExit(2), StopIteration(), KeyboardInterrupt(), KeyError()])
async def test_whatever_they_raise_is_recorded(rig: Rig, error: BaseException) -> None:
    @rig.app.task(name="raises")
    def raises() -> None:
        raise error

    async with rig.worker(renew_on="thread"):
        with pytest.raises(JobFailed) as caught:
            await (await raises.enqueue()).result(60)
    assert caught.value.failure is not None
    # Python itself turns this one into a RuntimeError on its way through a coroutine.
    kind = RuntimeError if isinstance(error, StopIteration) else type(error)
    assert caught.value.failure.type == kind.__name__
    assert "worker/threads.py" not in caught.value.failure.traceback


async def test_a_coroutine_they_return_is_awaited_in_the_loop(rig: Rig) -> None:
    async def later() -> int:
        assert threading.current_thread() is threading.main_thread()
        return 5

    @rig.app.task(name="hands_over")
    def hands_over() -> Any:
        return later()

    async with rig.worker(renew_on="thread"):
        handle = await hands_over.enqueue()
        (job,) = await rig.ledger.finished([handle.id], 60)
    assert (job.status, job.result) == (Status.DONE, b"5")


async def test_a_thread_over_its_time_keeps_its_slot_until_it_ends(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    leave = threading.Event()
    runs: list[int] = []

    @rig.app.task(name="slow", timeout=0.05, retry=2)
    def slow() -> None:
        runs.append(current().attempt)
        leave.wait(60)
        while not current().cancelled:
            threading.Event().wait(0.001)

    handle = await slow.enqueue()
    async with rig.worker(renew_on="thread", concurrency=1, lease=0.3):
        await until(lambda: "over its timeout" in caplog.text)
        assert "leave.wait(60)" in caplog.text, "the stack says where"
        job = await rig.job(handle.id)
        assert (job.status, job.failures, runs) == (Status.RUNNING, 0, [1])
        leave.set()
        await until(lambda: runs == [1, 2])
        with pytest.raises(JobFailed):
            await handle.result(60)
        job = await rig.job(handle.id)
    assert job.failure is not None
    assert (job.failures, job.failure.kind) == (2, "timeout")


async def test_a_cancelled_thread_that_looks_ends_as_cancelled(rig: Rig) -> None:
    entered = threading.Event()

    @rig.app.task(name="looks")
    def looks() -> None:
        entered.set()
        run = current()
        while not run.cancelled:
            threading.Event().wait(0.001)
        raise InterruptedError

    handle = await looks.enqueue()
    async with rig.worker(renew_on="thread", lease=0.3):
        await until(entered.is_set)
        await handle.cancel()
        with pytest.raises(JobCancelled):
            await handle.result(60)


async def test_a_thread_that_outlasts_its_worker_is_left_running(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    leave, entered, left = threading.Event(), threading.Event(), threading.Event()

    @rig.app.task(name="stays")
    def stays() -> None:
        entered.set()
        leave.wait(60)
        left.set()

    handle = await stays.enqueue()
    worker = rig.make(renew_on="thread", grace=0.0)
    running = asyncio.ensure_future(worker.run())
    await until(entered.is_set)
    worker.stop()
    await running
    assert worker.stuck == [handle.id]
    assert await handle.status() is Status.RUNNING
    leave.set()
    await until(left.is_set)


async def test_a_blocked_loop_is_reported_and_keeps_its_leases(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = 1.5
    monkeypatch.setattr(watch, "TOLERATED", 0.5)
    monkeypatch.setattr(watch, "PERIOD", 0.02)
    reported = threading.Event()
    stacks: list[str] = []

    class Listener(Hooks):
        def loop_blocked(self, worker: str, seconds: float, stack: str) -> None:
            stacks.append(stack)
            if seconds > lease:
                reported.set()

    recovered: list[int] = []

    @rig.app.task(name="blocks")
    async def blocks() -> int:
        reported.wait(60)
        asking = asyncio.run_coroutine_threadsafe(rig.store.recover(10), other)
        recovered.append(asking.result(60))
        return current().attempt

    other = asyncio.new_event_loop()
    turning = threading.Thread(target=other.run_forever)
    turning.start()
    try:
        handle = await blocks.enqueue()
        async with rig.worker(renew_on="thread", lease=lease, hooks=[Listener()]):
            assert await handle.result(90) == 1
    finally:
        other.call_soon_threadsafe(other.stop)
        turning.join()
        other.close()
    assert reported.is_set()
    assert recovered == [0]
    assert "reported.wait(60)" in stacks[0]
    assert f"job {handle.id} of task blocks has blocked the event loop" in caplog.text


async def test_what_is_claimed_behind_a_blocked_loop_and_lost_there_is_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody renews it, so that others can run it sooner; then it is not to run here as well."""
    app, other = (Outlast(f"sqlite:///{tmp_path}/jobs.db?durability=process") for _ in range(2))
    runs: list[int] = []
    asked: list[Any] = []
    ask = SqliteStore.claim_next

    def claim_next(store: SqliteStore, *how: Any) -> Any:
        asked.append(store)
        return ask(store, *how)

    monkeypatch.setattr(SqliteStore, "claim_next", claim_next)

    async def late() -> None:
        runs.append(current().attempt)

    _, twin = (each.task(name="late")(late) for each in (app, other))

    @app.task(name="blocks")
    async def blocks() -> str:
        await until(lambda: asked[-1]._writer._parked)  # the worker has asked for more
        enqueuing = threading.Thread(target=lambda: ids.append(twin.enqueue_sync().id))
        enqueuing.start()
        enqueuing.join()
        wait_until(lambda: claimed_and_lost(tmp_path / "jobs.db", ids[0]))
        return ids[0]

    ids: list[str] = []
    async with app.worker(lease=0.6):
        late_one = app.handle(await (await blocks.enqueue()).result(60))
        await late_one.result(60)
    assert len(runs) == 1
    assert "belongs to another worker" not in caplog.text


def claimed_and_lost(path: Path, id: str) -> bool:
    """Whether the job was claimed once and waits again."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(60_000)
    try:
        found = connection.execute("SELECT attempt, state FROM jobs WHERE id = ?", (id,)).get
        return bool(found == (1, READY))
    finally:
        connection.close()


async def test_a_loop_that_stays_blocked_has_its_process_killed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TOLERATED", 0.5)  # a busy machine may let it stand still so long
    monkeypatch.setattr(watch, "PERIOD", 0.02)
    killed = threading.Event()

    @rig.app.task(name="blocks", timeout=0.1)
    async def blocks() -> bool:
        return killed.wait(60)

    handle = await blocks.enqueue()
    async with rig.worker(renew_on="thread", kill=killed.set):
        assert await handle.result(60) is True


async def test_even_a_run_that_blocks_the_loop_can_see_that_it_is_cancelled(rig: Rig) -> None:
    @rig.app.task(name="blocks")
    async def blocks() -> None:
        assert await rig.ledger.cancel([current().id]) == ["requested"]
        while not current().cancelled:
            threading.Event().wait(0.005)
        await asyncio.Event().wait()

    handle = await blocks.enqueue()
    async with rig.worker(renew_on="thread", lease=0.3):
        with pytest.raises(JobCancelled):
            await handle.result(60)


async def test_a_loop_that_waits_for_its_store_is_not_called_blocked(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    crew: Any = SimpleNamespace(runs={})
    looking = watch.Watch(crew, clock, None, (), worker="w", grace=1.0, kill=None)

    async def look() -> None:
        for _ in range(20):
            clock.advance(watch.PERIOD)
            await looking.turn(rig.store)

    await look()
    assert "has blocked the event loop" not in caplog.text
    looking.beat(clock.monotonic())
    await look()
    # After 1, 2, 4 and 8 of the 10 seconds.
    assert caplog.text.count("has blocked the event loop") == 4, "more and more seldom"
