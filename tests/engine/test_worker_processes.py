"""processes=True tasks: each job in a process of its own, which can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.apart_tasks import app, hidden_task
from tests.engine.rig import until

from outlast import JobCancelled, JobFailed, Status, StoreUnavailable, TaskError
from outlast.job import Claim, Job, Step
from outlast.stores.memory.store import MemoryStore
from outlast.worker import Worker
from outlast.worker.apart import Kept

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from outlast import Failure

pytestmark = pytest.mark.timeout(240)


@asynccontextmanager
async def worker(**options: Any) -> AsyncIterator[Worker]:
    made = Worker(app.open_store, app.tasks, **{"grace": 0.0, "lease": 0.6, **options})
    async with app:
        running = asyncio.ensure_future(made.run())
        try:
            yield made
        finally:
            made.stop()
            await running


def never_asked(asked: object) -> Any:
    raise AssertionError(f"the worker was asked for {asked}")


async def failure_of(name: str, *args: Any) -> Failure:
    handle = await app.tasks[name].enqueue(*args)
    with pytest.raises(JobFailed) as caught:
        await handle.result(60)
    assert caught.value.failure is not None
    return caught.value.failure


def pids(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_they_run_elsewhere_and_a_process_is_used_again() -> None:
    async with worker(concurrency=1):
        found = [await (await app.tasks["where"].enqueue(n)).result(60) for n in range(3)]
    assert [n for _, n in found] == [0, 1, 2]
    assert len({pid for pid, _ in found}) == 1
    assert found[0][0] != os.getpid()
    await until(lambda: not is_alive(found[0][0]))


async def test_they_see_the_job_and_report() -> None:
    async with worker():
        handle = await app.tasks["looks"].using(key="k-1").enqueue()
        assert await handle.result(60) == (handle.id, 1, "k-1")


async def test_what_they_raise_is_recorded_as_if_it_were_here() -> None:
    async with worker():
        failure = await failure_of("raises")
        assert (failure.kind, failure.type, failure.message) == (
            "error", "LookupError", "not there",
        )  # fmt: skip
        assert "in raises" in failure.traceback
        assert "apart.py" not in failure.traceback
        assert (await failure_of("leaves")).type == "SystemExit"
        assert "can't be stored" in (await failure_of("odd")).message


async def test_they_may_steer_and_run_loops_of_their_own(tmp_path: Path) -> None:
    async with worker():
        handle = await app.tasks["retries"].enqueue(str(tmp_path / "marker"))
        assert await handle.result(60) == "second time"
        assert await (await app.tasks["loops"].enqueue()).result(60) == 7
        assert await (await app.tasks["shelved"].enqueue()).result(60) == "found"


async def test_a_process_over_its_time_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker():
        failure = await failure_of("hangs", str(log))
    assert (failure.kind, failure.type) == ("timeout", "TimeoutError")
    (pid,) = pids(log)
    assert not is_alive(pid)


async def test_a_process_that_dies_is_the_jobs_crash_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker() as made:
        failure = await failure_of("dies", str(log))
        assert (failure.kind, failure.signal) == ("crash", signal.SIGSEGV)
        assert len(pids(log)) == 3, "max_crashes, though max_attempts is 1"
        assert (await failure_of("exits")).exit_code == 3
        assert await (await app.tasks["loops"].enqueue()).result(60) == 7
        assert made.stuck == []


async def test_a_cancel_kills_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker():
        handle = await app.tasks["waits"].enqueue(str(log))
        await until(lambda: pids(log))
        assert await handle.cancel() == "requested"
        with pytest.raises(JobCancelled):
            await handle.result(60)
    assert not is_alive(pids(log)[0])


async def test_a_stop_kills_the_process_and_gives_the_job_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker():
        handle = await app.tasks["waits"].enqueue(str(log))
        await until(lambda: pids(log))
    assert not is_alive(pids(log)[0])
    async with app:
        assert await handle.status() is Status.QUEUED
        await handle.cancel()


async def test_a_task_no_process_can_find_says_what_to_do() -> None:
    if "hidden" not in app.tasks:
        hidden_task()
    async with worker():
        failure = await failure_of("hidden")
    assert "define it at the top level" in failure.message


async def test_a_step_is_done_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker():
        handle = await app.tasks["stepped"].enqueue(str(log))
        assert await handle.result(60) == ["ONE", "TWO", "THREE"]
        assert (await handle.job()).attempt == 2
    assert log.read_text().split() == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("method", "kind"),
    [("recall", "StoreUnavailable"), ("remember", "StoreUnavailable"), ("held", "LeaseLost")],
)
async def test_a_step_that_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kind: str
) -> None:
    async def away(*_: object) -> Any:
        raise StoreUnavailable("it is away")

    async def refused(*_: object) -> bool:
        return False

    broken = refused if method == "held" else away
    monkeypatch.setattr(MemoryStore, "remember" if method == "held" else method, broken)
    async with worker():
        failure = await failure_of("stepped", str(tmp_path / "log"))
    assert failure.type == f"outlast.{kind}"


def test_no_step_inside_a_transaction_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker would wait for what the transaction has locked, and that one for the worker."""
    monkeypatch.setattr("outlast.worker.apart.is_joined", lambda: True)
    with pytest.raises(TaskError, match="before or after"):
        Kept(never_asked).remember_now(Claim(Job(id="j"), b""), Step(name="s#1"))


async def test_a_store_without_steps_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlast.worker.worker.keeper_of", lambda *_: None)
    async with worker():
        failure = await failure_of("stepped", str(tmp_path / "log"))
    assert "steps are kept by stores that can" in failure.message


async def test_they_can_not_sleep_without_their_process() -> None:
    async with worker():
        assert "raise Snooze instead" in (await failure_of("sleeps")).message


async def test_a_thread_left_behind_does_no_step_of_the_next_job(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with worker(concurrency=1):
        first = await (await app.tasks["leaves_a_thread"].enqueue(str(log))).result(60)
        second = await app.tasks["waits_for_it"].enqueue(str(log))
        assert await second.result(60) == first, "the same process"
        store: Any = app.store
        assert await store.recall(Claim(await second.job(), b"")) == []
    assert "the job has ended" in log.read_text()
