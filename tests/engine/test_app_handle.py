"""What became of a job: results as annotated, failures as errors, and waits that change nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.engine.by_hand import bury, call_off, claim_all, finish
from tests.fakes import FakeClock

from outlast import (
    ConfigurationError,
    DecodeError,
    EnqueueUncertain,
    Failure,
    Handle,
    JobCancelled,
    JobFailed,
    JobNotFound,
    Outlast,
    Status,
    StoreClosed,
)
from outlast.chance import SystemChance
from outlast.job import Job, done
from outlast.stores.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from outlast import Task


@dataclass
class Receipt:
    order: int
    day: date
    lines: tuple[int, ...]


RECEIPT = Receipt(42, date(2024, 2, 29), (1, 2))


def make(url: str, clock: FakeClock | None = None) -> Outlast:
    app = Outlast(url, clock=clock)

    @app.task(name="receipt")
    async def receipt(order: int) -> Receipt:
        return RECEIPT

    @app.task(name="anything")
    def anything(order: int):  # type: ignore[no-untyped-def]
        return {"order": order}

    return app


@pytest.fixture(params=["memory", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Outlast]:
    app = make(
        "memory://"
        if request.param == "memory"
        else f"sqlite:///{tmp_path}/jobs.db?durability=process"
    )
    async with app:
        yield app


async def enqueue(app: Outlast, name: str = "receipt", **options: Any) -> Handle[Any]:
    task: Task[..., Any] = app.tasks[name]
    return await task.using(**options).enqueue(42)


async def test_the_result_has_the_annotated_type(app: Outlast) -> None:
    handle = await enqueue(app)
    await finish(app, RECEIPT)
    assert await handle.result(timeout=60) == RECEIPT
    assert await handle.result() == RECEIPT, "as often as one likes"


async def test_the_result_is_awaited(app: Outlast) -> None:
    handle = await enqueue(app)
    waiting = asyncio.create_task(handle.result(timeout=60))
    await asyncio.sleep(0)
    await finish(app, RECEIPT)
    assert await waiting == RECEIPT


async def test_a_handle_by_id_knows_the_type_if_the_task_is_known(app: Outlast) -> None:
    handle = await enqueue(app)
    await finish(app, RECEIPT)
    kept = app.handle(handle.id)
    assert await kept.result(timeout=60) == RECEIPT
    assert not kept.created


async def test_a_handle_of_an_unknown_task_gives_what_json_says(app: Outlast) -> None:
    id = SystemChance().uuid7()
    await app.store.add([Job(id=id, task="foreign", payload=b"{}")])
    (claim,) = await app.store.claim(("default",), ["foreign"], 1, 15.0, "w")
    await app.store.settle([done(claim, b'{"order":42}')])
    assert await app.handle(id).result(timeout=60) == {"order": 42}


async def test_a_job_that_ended_without_a_result_gives_none(app: Outlast) -> None:
    handle = await enqueue(app, "anything")
    (claim,) = await claim_all(app)
    await app.store.settle([done(claim)])
    assert await handle.result(timeout=60) is None


async def test_a_result_of_another_type_is_an_error(app: Outlast) -> None:
    """The annotation changed since."""
    handle = await enqueue(app)
    (claim,) = await claim_all(app)
    await app.store.settle([done(claim, b'"a text"')])
    with pytest.raises(DecodeError) as caught:
        await handle.result(timeout=60)
    assert caught.value.data == b'"a text"'


async def test_dead_is_an_error_that_says_why(app: Outlast) -> None:
    handle = await enqueue(app)
    failure = Failure(kind="error", type="LookupError", message="no order 42", traceback="…")
    await bury(app, failure)
    with pytest.raises(JobFailed) as caught:
        await handle.result(timeout=60)
    assert caught.value.failure == failure
    assert str(caught.value) == (
        f"job {handle.id} of task receipt is dead after 1 run (error): LookupError: no order 42"
    )


async def test_dead_by_a_crash_says_so(app: Outlast) -> None:
    handle = await enqueue(app)
    await bury(app, Failure(kind="crash", message="the worker was killed by signal 9", signal=9))
    with pytest.raises(JobFailed, match=r"\(crash\): the worker was killed by signal 9$"):
        await handle.result(timeout=60)


async def test_dead_without_a_reason_or_with_half_of_one(app: Outlast) -> None:
    """What another store, or another version, may have left."""
    first = await enqueue(app)
    await bury(app, Failure(kind="lost"))
    with pytest.raises(JobFailed, match=r"\(lost\): no message$"):
        await first.result(timeout=60)
    record = await first.job()
    second: Handle[Any] = Handle("id", True, app._desk)
    with pytest.raises(JobFailed, match=r"^job id is dead after 2 runs$"):
        second._outcome(replace(record, id="id", task=None, attempt=2, failure=None))


async def test_cancelled_by_someone(app: Outlast) -> None:
    handle = await enqueue(app)
    assert await handle.cancel() == "cancelled"
    assert await handle.status() is Status.CANCELLED
    with pytest.raises(JobCancelled, match=f"{handle.id} of task receipt was cancelled"):
        await handle.result(timeout=60)
    assert await handle.cancel() == "ended"


async def test_given_up_by_itself(app: Outlast) -> None:
    handle = await enqueue(app)
    await call_off(app, Failure(kind="cancelled", message="the order is gone"))
    with pytest.raises(JobCancelled, match="was cancelled: the order is gone"):
        await handle.result(timeout=60)


async def test_expired_before_it_could_start() -> None:
    clock = FakeClock()
    app = make("memory://", clock)
    async with app:
        handle = await enqueue(app, expires=10)
        clock.advance(11)
        await app.store.prune(10)
        with pytest.raises(JobCancelled, match="expired before it could start"):
            await handle.result(timeout=0)


async def test_a_running_job_is_asked_to_stop(app: Outlast) -> None:
    handle = await enqueue(app)
    await claim_all(app)
    assert await handle.status() is Status.RUNNING
    assert await handle.cancel() == "requested"
    assert await handle.status() is Status.RUNNING


async def test_a_job_that_is_not_there(app: Outlast) -> None:
    handle = app.handle(SystemChance().uuid7())
    with pytest.raises(JobNotFound, match=handle.id):
        await handle.result(timeout=60)
    with pytest.raises(JobNotFound, match=handle.id):
        await handle.status()
    with pytest.raises(JobNotFound, match=handle.id):
        await handle.cancel()
    with pytest.raises(JobNotFound, match=handle.id):
        await asyncio.to_thread(handle.result_sync, 60)


async def test_a_timeout_changes_nothing(app: Outlast) -> None:
    handle = await enqueue(app)
    with pytest.raises(TimeoutError, match=handle.id):
        await handle.result(timeout=0.01)
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        await handle.result(timeout=timedelta(milliseconds=10))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0)
    assert await handle.status() is Status.QUEUED


async def test_giving_up_the_wait_changes_nothing(app: Outlast) -> None:
    handle = await enqueue(app)
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await handle.status() is Status.QUEUED
    await finish(app, RECEIPT)
    assert await handle.result(timeout=60) == RECEIPT


async def test_without_a_timeout_it_waits_as_long_as_it_takes() -> None:
    """Longer than one question to the store lasts."""
    clock = FakeClock()
    app = make("memory://", clock)
    async with app:
        handle = await enqueue(app)
        waiting = asyncio.create_task(handle.result())
        for _ in range(5):
            while not clock.sleepers:
                await asyncio.sleep(0)
            clock.advance(100)
        await finish(app, RECEIPT)
        assert await waiting == RECEIPT


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5", True])
async def test_a_timeout_that_is_no_time(app: Outlast, timeout: Any) -> None:
    handle = await enqueue(app)
    with pytest.raises(ConfigurationError, match="timeout"):
        await handle.result(timeout=timeout)
    with pytest.raises(ConfigurationError, match="timeout"):
        handle.result_sync(timeout=timeout)


@pytest.mark.parametrize("id", ["", None, 7])
def test_an_id_that_is_none(id: Any) -> None:
    with pytest.raises(ConfigurationError, match="job id"):
        make("memory://").handle(id)


async def test_threads_wait_while_the_loop_works(app: Outlast) -> None:
    handle = await enqueue(app)
    waiting = asyncio.create_task(asyncio.to_thread(handle.result_sync, 60))
    await finish(app, RECEIPT)
    assert await waiting == RECEIPT


async def test_in_the_thread_of_the_loop_waiting_is_refused(app: Outlast) -> None:
    handle = await enqueue(app)
    with pytest.raises(RuntimeError, match=r"await handle\.result"):
        handle.result_sync(timeout=1)
    with pytest.raises(RuntimeError, match=r"await task\.enqueue"):
        app.tasks["receipt"].enqueue_sync(1)


def test_a_thread_that_times_out(tmp_path: Path) -> None:
    app = make(f"sqlite:///{tmp_path}/jobs.db?durability=process")
    handle = app.tasks["receipt"].enqueue_sync(1)
    with pytest.raises(TimeoutError):
        handle.result_sync(timeout=0.01)


async def test_closing_the_app_ends_the_waits_of_threads() -> None:
    app = make("memory://")
    async with app:
        handle = await enqueue(app)
        waiting = asyncio.create_task(asyncio.to_thread(handle.result_sync))
        while not app._access.bridge.running:
            await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        await waiting


async def test_closing_the_app_in_the_middle_of_an_enqueue_is_uncertain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread learns the id, so that it can ask, or store the same call again."""
    app = make("memory://")
    call = app.tasks["receipt"].call(1)
    adding = threading.Event()

    async def add(self: MemoryStore, jobs: Sequence[Job], capacity: int | None = None) -> None:
        adding.set()
        await asyncio.Event().wait()

    async with app:
        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "add", add)
            waiting = asyncio.create_task(asyncio.to_thread(app.enqueue_many_sync, [call]))
            await asyncio.to_thread(adding.wait, 60)
            await app.close()
            with pytest.raises(EnqueueUncertain, match="may or may not") as caught:
                await waiting
        await app.open()
        assert caught.value.ids == (call.job.id,)
        (handle,) = await app.enqueue_many([call])
        assert handle.created


def test_fifty_threads_enqueue_and_wait_at_once(tmp_path: Path) -> None:
    app = make(f"sqlite:///{tmp_path}/jobs.db?durability=process")
    receipt = app.tasks["receipt"]
    together = threading.Barrier(50)

    def one(order: int) -> str:
        together.wait()
        return receipt.enqueue_sync(order).id

    with ThreadPoolExecutor(50) as threads:
        ids = list(threads.map(one, range(50)))
    assert len(set(ids)) == 50

    async def stored() -> int:
        async with app:
            return (await app.store.depth("default")).ready

    assert asyncio.run(stored()) == 50


def test_fifty_threads_with_one_key_make_one_job(tmp_path: Path) -> None:
    app = make(f"sqlite:///{tmp_path}/jobs.db?durability=process")
    keyed = app.tasks["receipt"].using(key="fresh")
    together = threading.Barrier(50)

    def one(_: int) -> Handle[Any]:
        together.wait()
        return keyed.enqueue_sync(42)

    with ThreadPoolExecutor(50) as threads:
        handles = list(threads.map(one, range(50)))
    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1


def test_a_batch_from_a_thread_in_one_write(tmp_path: Path) -> None:
    app = make(f"sqlite:///{tmp_path}/jobs.db?durability=process")
    receipt = app.tasks["receipt"]
    handles = app.enqueue_many_sync(receipt.call(n) for n in range(3))
    assert [handle.created for handle in handles] == [True] * 3
    assert app.enqueue_many_sync([]) == []


def test_how_it_looks() -> None:
    app = make("memory://")
    assert repr(app.handle("abc")) == "<Handle abc (there already)>"
    assert repr(app.tasks["receipt"].call(1)).startswith("<Call receipt 0")
    assert repr(app.tasks["receipt"]) == "<Task receipt(order)>"
