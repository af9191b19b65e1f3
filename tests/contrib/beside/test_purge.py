"""C49: purge of a queue of ours that is fed by Celery takes what waits there, and nothing else."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.contrib.beside.pair import PATIENCE

from outlast import Outlast
from outlast.access import ledger_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contrib.beside.pair import Producer
    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")
READY, LATE = 20, 10


async def test_c49(redis: RedisServer, producer: Producer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = Outlast(url)
    gate, begun = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @app.task(queue="a")
    async def hold() -> None:
        begun.set()
        await gate.wait()

    async def note(id: str) -> None:
        ran.append(id)

    notes = {f"note.{queue}": app.task(name=f"note-{queue}", queue=queue)(note) for queue in "abc"}
    app.celery_tasks({"hold": hold, **notes}, broker=redis.url(), backend=redis.url())

    def send(queue: str, count: int, word: str, **options: float) -> list[str]:
        ids = [f"{word}-{queue}-{n}" for n in range(count)]
        for id_ in ids:
            producer.send(f"note.{queue}", id_, options={"task_id": id_, **options})
        return ids

    def outlast(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "outlast", *words, "--url", url]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    async with app.worker(queues=["a", "b", "c", "default"], concurrency=1):
        held = await asyncio.to_thread(producer.send, "hold")
        await asyncio.wait_for(begun.wait(), PATIENCE)
        late = await asyncio.to_thread(send, "a", LATE, "late", countdown=3600)
        ready = {queue: await asyncio.to_thread(send, queue, READY, "ready") for queue in "abc"}
        mine = [*late, *ready["a"]]
        ledger = ledger_of(app.store)
        async with asyncio.timeout(PATIENCE):
            while None in await ledger.get([*mine, *ready["b"], *ready["c"]]):
                await asyncio.sleep(0)
        purged = await asyncio.to_thread(outlast, "purge", "a", "--yes")
        assert purged.returncode == 0, purged.stderr
        gone = [id_ for id_, job in zip(mine, await ledger.get(mine), strict=True) if job is None]
        assert re.findall(r"\d+", purged.stdout)[0] == str(len(gone))
        assert set(late) <= set(gone)
        # What the worker had claimed already is not waiting any more.
        assert len(gone) >= len(mine) - 2
        missing = await asyncio.to_thread(outlast, "purge", "nowhere", "--yes")
        assert missing.returncode != 0
        assert "nowhere" in missing.stderr
        gate.set()
        for id_ in (held, *ready["b"], *ready["c"]):
            await asyncio.to_thread(producer.get, id_)
        async with asyncio.timeout(PATIENCE):
            while len(ran) < 2 * READY + len(mine) - len(gone):
                await asyncio.sleep(0)
    assert sorted(ran) == sorted({*mine, *ready["b"], *ready["c"]} - set(gone))
    assert redis.say("EXISTS", "celery", "unacked", "unacked_index") == b":0\r\n"
