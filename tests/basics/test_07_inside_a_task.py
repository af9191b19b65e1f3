"""7. Inside a task: which job is this, how far is it, and does anyone still want it?"""

from __future__ import annotations

import asyncio

import pytest

from outlast import JobCancelled, Outlast, TaskError, current

app = Outlast("memory://")


@app.task(headers={"from": "basics"})
async def who_am_i() -> tuple[str, int, str]:
    here = current()
    return here.id, here.attempt, here.headers["from"]


async def test_current_is_the_job_that_runs_here() -> None:
    async with app.worker():
        handle = await who_am_i.enqueue()
        assert await handle.result(timeout=60) == (handle.id, 1, "basics")


def test_outside_of_a_job_there_is_none() -> None:
    with pytest.raises(TaskError):
        current()


@app.task
async def import_file(lines: int) -> int:
    current().progress(0.5, "half of it")
    await half_way.wait()
    return lines


half_way = asyncio.Event()


async def test_progress_can_be_seen_while_it_runs() -> None:
    half_way.clear()
    async with app.worker():
        handle = await import_file.enqueue(10)
        while (progress := (await handle.job()).progress) is None:
            await asyncio.sleep(0)
        assert (progress.value, progress.text) == (0.5, "half of it")
        half_way.set()
        assert await handle.result(timeout=60) == 10


@app.task
async def endless() -> None:
    await asyncio.Event().wait()


async def test_a_running_job_can_be_cancelled() -> None:
    async with app.worker():
        handle = await endless.enqueue()
        while (await handle.status()) != "running":
            await asyncio.sleep(0)
        assert await handle.cancel() == "requested"
        with pytest.raises(JobCancelled):
            await handle.result(timeout=60)


async def test_a_queued_job_too_and_it_never_starts() -> None:
    async with app:
        handle = await endless.enqueue()
        assert await handle.cancel() == "cancelled"
        assert await handle.status() == "cancelled"
        assert await handle.cancel() == "ended"
