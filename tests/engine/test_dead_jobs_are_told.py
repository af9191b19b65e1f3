"""A job that is dead waits for somebody: the worker's log says so."""

from __future__ import annotations

import pytest

from outlast import JobFailed, Outlast


async def test_one_warning_for_a_dead_job(caplog: pytest.LogCaptureFixture) -> None:
    app = Outlast("memory://")

    @app.task(name="broken")
    async def broken() -> None:
        raise ValueError("no such card")

    async with app, app.worker():
        handle = await broken.enqueue()
        with pytest.raises(JobFailed):
            await handle.result(timeout=60)
    told = [record.getMessage() for record in caplog.records if "is dead" in record.getMessage()]
    assert len(told) == 1
    assert handle.id in told[0]
    assert "(error: ValueError: no such card)" in told[0]


async def test_nothing_is_said_of_others(caplog: pytest.LogCaptureFixture) -> None:
    app = Outlast("memory://")

    @app.task(name="fine")
    async def fine() -> None:
        pass

    async with app, app.worker():
        await (await fine.enqueue()).result(timeout=60)
    assert not [record for record in caplog.records if "is dead" in record.getMessage()]
