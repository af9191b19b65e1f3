"""3. Not now: after a while, at a moment, before it is too late, and what goes first."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from outlast import ConfigurationError, JobCancelled, Outlast, Status

app = Outlast("memory://")
log: list[str] = []


@app.task
async def note(text: str) -> None:
    log.append(text)


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


async def test_after_a_while() -> None:
    """`using` gives a copy of the task: the options count for the calls made through it."""
    async with app.worker():
        before = asyncio.get_running_loop().time()
        handle = await note.using(delay=0.1).enqueue("later")
        await handle.result(timeout=60)
        assert asyncio.get_running_loop().time() - before > 0.09


async def test_at_a_moment() -> None:
    async with app:
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        handle = await note.using(at=tomorrow).enqueue("tomorrow")
        assert (await handle.job()).run_at == pytest.approx(tomorrow.timestamp())

        # A datetime without a zone means another moment on another machine, so it is refused.
        with pytest.raises(ConfigurationError, match="time zone"):
            note.using(at=datetime(2031, 5, 6, 12, 0))


async def test_before_it_is_too_late() -> None:
    """A job that nobody could start in time is cancelled, not run late."""
    async with app:
        handle = await note.using(expires=0.05).enqueue("hot soup")
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.1)
        async with app.worker():
            with pytest.raises(JobCancelled, match="expired"):
                await handle.result(timeout=60)
    assert log == []


async def test_higher_priority_first() -> None:
    """From -100 to 100; jobs of equal priority keep their order."""
    async with app:
        handles = [
            await note.enqueue("a"),
            await note.enqueue("b"),
            await note.using(priority=-1).enqueue("some time"),
            await note.using(priority=10).enqueue("urgent"),
        ]
        async with app.worker(concurrency=1):
            for handle in handles:
                await handle.result(timeout=60)
    assert log == ["urgent", "a", "b", "some time"]


async def test_another_queue_is_for_another_worker() -> None:
    async with app:
        slow = await note.using(queue="slow").enqueue("slow")
        async with app.worker():
            await (await note.enqueue("fast")).result(timeout=60)
            assert await slow.status() is Status.QUEUED
        async with app.worker(queues=["slow"]):
            await slow.result(timeout=60)
    assert log == ["fast", "slow"]
