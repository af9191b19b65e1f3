"""A worker inside a program: it runs while the block does, drains at its end, and fails loudly."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from outlast import ConfigurationError, Outlast, Status, StoreClosed, StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path


class FakeWorker:
    """Does nothing until it is stopped, or fails when it is told to."""

    made: ClassVar[list[FakeWorker]] = []

    def __init__(self, open_store: Any, tasks: Any, **options: Any) -> None:
        self.open_store, self.tasks, self.options = open_store, tasks, options
        self.stopping = asyncio.Event()
        self.error: BaseException | None = None
        self.drained = asyncio.Event()
        self.drained.set()
        self.log: list[str] = []
        self.made.append(self)

    def stop(self) -> None:
        self.log.append("stop")
        self.stopping.set()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.stopping.set()

    async def run(self) -> None:
        self.log.append("run")
        try:
            await self.stopping.wait()
            if self.error is not None:
                raise self.error
            await self.drained.wait()
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        self.log.append("end")


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Outlast:
    FakeWorker.made.clear()
    monkeypatch.setattr("outlast.worker.Worker", FakeWorker, raising=False)
    return Outlast("memory://")


def the_worker() -> FakeWorker:
    (worker,) = FakeWorker.made
    return worker


async def test_it_runs_while_the_block_does_and_is_waited_for(app: Outlast) -> None:
    async with app.worker(queues=["a", "b"], concurrency=3, lease=9, grace=1):
        await asyncio.sleep(0)
        worker = the_worker()
        assert worker.log == ["run"]
        assert app.store is not None
        assert worker.options["queues"] == ["a", "b"]
        assert worker.options["concurrency"] == 3
        assert (worker.options["lease"], worker.options["grace"]) == (9, 1)
        assert worker.tasks == app.tasks
        assert worker.open_store() is not app.store
    assert worker.log == ["run", "stop", "end"]
    with pytest.raises(StoreClosed):
        _ = app.store


async def test_what_the_block_raises_comes_out_after_the_drain(app: Outlast) -> None:
    async def program() -> None:
        async with app.worker():
            await asyncio.sleep(0)
            raise LookupError

    with pytest.raises(LookupError):
        await program()
    assert the_worker().log == ["run", "stop", "end"]


async def test_a_worker_that_fails_ends_the_block(
    app: Outlast, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        async with app.worker():
            await asyncio.sleep(0)
            the_worker().fail(StoreUnavailable("gone"))
            await asyncio.Event().wait()

    with pytest.raises(StoreUnavailable, match="gone"):
        await program()
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_worker_that_fails_in_the_drain(app: Outlast) -> None:
    async def program() -> None:
        async with app.worker():
            await asyncio.sleep(0)
            the_worker().error = StoreUnavailable("gone")

    with pytest.raises(StoreUnavailable, match="gone"):
        await program()


async def test_cancelling_the_block_drains_and_stays_a_cancel(app: Outlast) -> None:
    async def program() -> None:
        async with app.worker():
            await asyncio.Event().wait()

    running = asyncio.create_task(program())
    while not FakeWorker.made or not the_worker().log:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert the_worker().log == ["run", "stop", "end"]


async def test_a_failure_and_a_cancel_at_once_is_a_cancel(app: Outlast) -> None:
    async def program() -> None:
        async with app.worker():
            await asyncio.Event().wait()

    running = asyncio.create_task(program())
    while not FakeWorker.made or not the_worker().log:
        await asyncio.sleep(0)
    the_worker().fail(StoreUnavailable("gone"))
    running.cancel()
    with pytest.raises((asyncio.CancelledError, StoreUnavailable)):
        await running


async def test_a_cancel_in_the_drain_cancels_the_worker_and_waits_for_it(app: Outlast) -> None:
    async def program() -> None:
        async with app.worker():
            await asyncio.sleep(0)
            the_worker().drained.clear()

    running = asyncio.create_task(program())
    while not FakeWorker.made or "stop" not in the_worker().log:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert the_worker().log == ["run", "stop", "cancelled"]


async def test_a_worker_that_is_stopped_in_the_block_is_no_failure(app: Outlast) -> None:
    async with app.worker() as worker:
        await asyncio.sleep(0)
        worker.stop()
        while "end" not in the_worker().log:
            await asyncio.sleep(0)


async def test_lifespan_opens_and_closes(app: Outlast) -> None:
    async with app.lifespan(object()) as state:
        assert state is None
        assert app.store is not None
    with pytest.raises(StoreClosed):
        _ = app.store


@pytest.fixture(params=["memory", "sqlite"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Outlast:
    return Outlast(
        "memory://"
        if request.param == "memory"
        else f"sqlite:///{tmp_path}/jobs.db?durability=process"
    )


async def test_a_real_worker_runs_in_the_same_loop(real: Outlast) -> None:
    loops: list[object] = []

    @real.task(name="look")
    async def look(n: int) -> int:
        loops.append(asyncio.get_running_loop())
        return n * 2

    async with real.worker():
        handle = await look.enqueue(21)
        assert await handle.result(timeout=60) == 42
        second = await asyncio.to_thread(look.enqueue_sync, 1)
        assert await asyncio.to_thread(second.result_sync, 60) == 2
    assert loops[0] is asyncio.get_running_loop()


async def test_a_task_that_is_registered_while_the_worker_runs(real: Outlast) -> None:
    """By a module that is imported when it is first needed, say."""

    @real.task(name="early")
    async def early() -> str:
        return "early"

    async with real.worker():
        assert await (await early.enqueue()).result(timeout=60) == "early"

        @real.task(name="late")
        async def late() -> str:
            return "late"

        assert await (await late.enqueue()).result(timeout=60) == "late"


async def test_a_real_worker_lets_what_runs_end(real: Outlast) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @real.task(name="slow")
    async def slow() -> str:
        started.set()
        await go_on.wait()
        return "done"

    async with real:
        async with real.worker():
            handle = await slow.enqueue()
            await started.wait()
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        assert await handle.status() is Status.DONE


async def test_a_wrong_option_of_the_worker(real: Outlast) -> None:
    with pytest.raises(ConfigurationError):
        async with real.worker(concurrency=0):
            pass
    with pytest.raises(StoreClosed):
        _ = real.store
