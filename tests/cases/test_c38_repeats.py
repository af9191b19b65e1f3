"""C38: enqueueing again with an id whose earlier run is on record is silently ignored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.cases.program import LOG
from tests.cases.rig import everywhere
from tests.fakes import FakeClock

from outlast import Outlast

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from tests.cases.rig import Rig


@everywhere
def test_c38_again_while_remembered(rig: Rig) -> None:
    async def work(app: Outlast) -> None:
        task = app.tasks["instant"].using(key="K")
        async with app.worker():
            first = await task.enqueue(1)
            assert first.created
            await first.result(timeout=60)
            again = await task.enqueue(1)
            assert (again.created, again.id) == (False, first.id)
            assert await again.result(timeout=60) == 1

    rig.run(work)
    assert len(rig.said("start")) == 1


async def test_c38_again_when_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log"))
    clock = FakeClock()
    app = Outlast(f"sqlite:///{tmp_path / 'c38.db'}", clock=clock)

    @app.task(name="instant")
    async def instant(number: int) -> int:
        return number

    async with app:
        task = instant.using(key="K")
        first = await task.enqueue(1)
        assert await first.cancel() == "cancelled"
        assert not (await task.enqueue(1)).created
        clock.advance(86_401)
        assert (await task.enqueue(1)).created


@everywhere
def test_c38_fifty_at_once(rig: Rig) -> None:
    async def work(app: Outlast) -> None:
        task = app.tasks["instant"].using(key="fresh")
        async with app.worker():
            handles = await asyncio.gather(*(task.enqueue(5) for _ in range(50)))
            assert len({handle.id for handle in handles}) == 1
            assert sum(handle.created for handle in handles) == 1
            assert await handles[0].result(timeout=60) == 5

    rig.run(work)
    assert len(rig.said("start")) == 1
