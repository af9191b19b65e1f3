"""The same deeds with jobs on a private Redis, and rows in a file of the user's, with an inbox.

The worker dies before or after a call of the server.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.proof.deeds import QUEUE, Mark, fill, work
from tests.proof.deeds_postgres import die_at
from tests.proof.processes import in_child
from tests.servers import RedisServer

from outlast import Durability, Outlast, current, outbox_tables
from outlast.job import Claim, Status
from outlast.stores import connect
from outlast.stores.sqlite.schema import DONE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from outlast.job import Job

__all__ = ["RedisGround", "redis_grounds"]

_DEPTHS = ("ready", "delayed", "running", "done", "dead", "cancelled")


class RedisGround:
    """A database of a private server, one after the other: they are numbered."""

    reach = 120
    pause = 0.05

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.folder = folder
        self._server = server
        self._armed = False
        self._url = server.url()
        self._space = f"deeds-{folder.parent.name}-{folder.name}".lower()

    def app(self) -> Outlast:
        return Outlast(self._url, namespace=self._space, durability=Durability.PROCESS)

    def begun(self) -> None:
        """Only what is said from now on counts."""
        self._armed = True

    def store(self, vfs: str) -> Any:
        return connect(self._url, namespace=self._space, durability=Durability.PROCESS)

    async def effect(self, app: Outlast, n: int, first: str, mark: Mark) -> str:
        connection = self._rows()
        with connection:
            if app.inbox(connection).is_new():
                connection.execute("INSERT INTO effects (n, mark) VALUES (?, ?)", (n, first))
        connection.close()
        await app.tasks["follow"].using(key=f"follow-{n}").enqueue(n)
        await current().step("inner", mark, "inner", n)
        return first

    def _rows(self) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / "rows.db", timeout=60)

    def copy(self, folder: Path) -> RedisGround:
        """Filled in again: a namespace can't be copied."""
        folder.mkdir()
        ground = RedisGround(self._server, folder)
        in_child(lambda: fill(ground, 1), 120.0)
        return ground

    def life(self, nth: int) -> None:
        die_at(nth, lambda: self._armed)
        asyncio.run(work(self, self.folder))

    def prepare(self) -> None:
        connection = self._rows()
        connection.executescript(outbox_tables("sqlite"))
        connection.execute("CREATE TABLE effects (n INTEGER NOT NULL, mark TEXT NOT NULL)")
        connection.close()

    def effects(self) -> list[Any]:
        connection = self._rows()
        try:
            return connection.execute("SELECT n, mark FROM effects ORDER BY n").fetchall()
        finally:
            connection.close()

    def jobs(self) -> list[Any]:
        states = {Status.DONE: DONE}
        return [
            (job.id, job.task, states.get(job.status, str(job.status)), job.payload, job.result)
            for job in self._asked(_all_jobs)
        ]

    def steps(self) -> list[Any]:
        async def recall(store: Any) -> list[Any]:
            return [
                (job.id, step.name, step.result)
                for job in await _all_jobs(store)
                for step in await store.recall(Claim(job, b""))
            ]

        return self._asked(recall)

    def _asked(self, question: Callable[[Any], Awaitable[list[Any]]]) -> list[Any]:
        async def ask() -> list[Any]:
            store = self.store("")
            await store.open()
            try:
                return await question(store)
            finally:
                await store.close()

        return asyncio.run(ask())

    def verify(self) -> list[str]:
        """The counts against the jobs."""

        async def depth(store: Any) -> list[Any]:
            return [await store.depth(QUEUE)]

        [found] = self._asked(depth)
        jobs = self.jobs()
        wanted = dict.fromkeys(_DEPTHS, 0) | {"done": len(jobs)}
        counted = {name: getattr(found, name) for name in _DEPTHS}
        return [] if counted == wanted else [f"counted {counted}, there are {len(jobs)} jobs"]


async def _all_jobs(store: Any) -> list[Job]:
    return list(await store.find(limit=10_000))


@contextmanager
def redis_grounds() -> Iterator[Callable[[Path], RedisGround]]:
    """A server for them all."""
    server = RedisServer()
    server.start()
    try:
        yield lambda folder: RedisGround(server, folder)
    finally:
        server.remove()
