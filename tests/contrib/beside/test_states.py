"""The states on the way to a result, as Celery has them: STARTED and RETRY."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.contrib.beside.pair import PATIENCE

from outlast import Outlast, RetryPolicy
from outlast.contrib.celery.beside.canvas import Result
from outlast.contrib.celery.beside.redis import RedisBackend

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contrib.beside.pair import Producer
    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")


async def reaches(producer: Producer, id_: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(producer.ask, state=id_) != state:
            pass


async def test_started_and_retry_are_told(
    redis: RedisServer, producer: Producer, tmp_path: Path
) -> None:
    app = Outlast(f"sqlite:///{tmp_path}/jobs.db")
    gate = asyncio.Event()
    runs: list[int] = []

    @app.task(retry=RetryPolicy(attempts=2, delay=0.1, jitter=False))
    async def flaky(number: int) -> int:
        runs.append(number)
        await gate.wait()
        if len(runs) == 1:
            gate.clear()
            raise ConnectionError("away")
        return number

    app.celery_tasks({"flaky": flaky}, broker=redis.url(), backend=redis.url(), track_started=True)
    told: list[str] = []
    note = RedisBackend.note

    async def noted(self: RedisBackend, results: Any) -> None:
        await note(self, results)
        for one in results:
            told.append(one.document["status"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RedisBackend, "note", noted)
        async with app.worker():
            sent = await asyncio.to_thread(producer.send, "flaky", 7)
            await reaches(producer, sent, "STARTED")
            gate.set()
            async with asyncio.timeout(PATIENCE):
                while len(runs) < 2:
                    await asyncio.sleep(0)
            gate.set()
            assert await asyncio.to_thread(producer.get, sent) == 7
            async with asyncio.timeout(PATIENCE):
                while len(told) < 3:
                    await asyncio.sleep(0)
    assert told == ["STARTED", "RETRY", "STARTED"]


async def test_a_state_never_takes_the_place_of_a_result(
    redis: RedisServer, producer: Producer
) -> None:
    backend = RedisBackend(redis.url(), 60.0, {})

    def result(status: str, value: Any) -> Result:
        document = {"status": status, "result": value, "traceback": None, "task_id": "t"}
        return Result(id="t", document=document)

    await backend.note([result("STARTED", None)])
    assert await asyncio.to_thread(producer.ask, state="t") == "STARTED"
    await backend.store([result("SUCCESS", 3)], [])
    await backend.note([result("RETRY", None)])
    await backend.close()
    assert await asyncio.to_thread(producer.get, "t") == 3
    assert redis.say("TTL", "celery-task-meta-t") != b":-1\r\n"
