"""What a Celery app revokes is revoked here, if it has not started."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.contrib.beside.pair import PATIENCE, Failed

from outlast import Status

if TYPE_CHECKING:
    from tests.contrib.beside.pair import Pair

pytestmark = pytest.mark.needs("redis")


async def ask(pair: Pair, **asked: Any) -> Any:
    return await asyncio.to_thread(pair.producer.ask, **asked)


async def revoke(pair: Pair, ids: list[str], told: str, **how: Any) -> None:
    """Say it until it is heard: a broadcast reaches those who listen already."""
    async with asyncio.timeout(PATIENCE):
        while await ask(pair, state=told) != "REVOKED":
            await ask(pair, revoke=ids, **how)


async def test_what_waits_and_what_has_yet_to_come(pair: Pair) -> None:
    async with pair.app.worker():
        later = await pair.send("add", 1, 2, options={"countdown": 3600})
        await revoke(pair, [later, "early"], later)
        with pytest.raises(Failed, match="REVOKED TaskRevokedError"):
            await pair.get(later)
        job = await pair.app.handle(later).job()
        assert job.status is Status.CANCELLED
        await pair.send("add", 3, 4, options={"task_id": "early"})
        with pytest.raises(Failed, match="REVOKED TaskRevokedError"):
            await pair.get("early")
        assert await pair.get(await pair.send("add", 5, 6)) == 11
    assert pair.ran == [(5, 6)]


async def test_what_runs_goes_on_unless_it_is_to_be_terminated(pair: Pair) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @pair.app.task
    async def hold() -> str:
        begun.set()
        await gate.wait()
        return "done"

    pair.app.celery_tasks({"hold": hold}, broker=pair.redis.url())
    async with pair.app.worker():
        held = await pair.send("hold")
        later = await pair.send("add", 1, 2, options={"countdown": 3600})
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await revoke(pair, [held, later], later)
        gate.set()
        assert await pair.get(held) == "done"
        gate.clear()
        begun.clear()
        killed = await pair.send("hold")
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await revoke(pair, [killed], killed, terminate=True)
        with pytest.raises(Failed, match="REVOKED TaskRevokedError"):
            await pair.get(killed)
