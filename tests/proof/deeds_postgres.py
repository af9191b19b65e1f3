"""The same deeds on a private PostgreSQL: the worker dies before or after a write to the server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from asyncio import selector_events
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from tests.proof.deeds import TableGround, work
from tests.servers import PostgresServer

from outlast import Outlast
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["PostgresGround", "die_at", "grounds"]

_numbers = itertools.count(1)
_COUNTS = """
SELECT 'line ' || l.id || ' is counted wrong' FROM @lines l
LEFT JOIN (SELECT line, sum(ready) AS ready, sum(delayed) AS delayed, sum(running) AS running,
    sum(done) AS done FROM (SELECT line, ready, delayed, running, done FROM @counts UNION ALL
    SELECT line, ready, delayed, running, done FROM @changes) AS a GROUP BY line) AS c
    ON c.line = l.id
WHERE coalesce(c.ready, 0) <> (SELECT count(*) FROM @jobs j WHERE j.line = l.id AND state IN (1, 2))
    OR coalesce(c.delayed, 0) <> (SELECT count(*) FROM @jobs j WHERE j.line = l.id AND state = 0)
    OR coalesce(c.running, 0) <> (SELECT count(*) FROM @jobs j WHERE j.line = l.id AND state = 3)
    OR coalesce(c.done, 0) <> (SELECT count(*) FROM @ended e WHERE e.line = l.id AND state = 4)
UNION ALL SELECT 'job ' || id || ' is live, and has ended' FROM @jobs JOIN @ended USING (id)
"""


class PostgresGround(TableGround):
    """A database of a private server."""

    ended = "ended"
    reach = 300
    pause = 0.2
    text = "INSERT INTO outlast.effects (n, mark) VALUES ($1, $2)"

    def __init__(self, server: PostgresServer, folder: Path, template: str = "template1") -> None:
        self.folder = folder
        self._armed = False
        self._server = server
        self._name = f"deeds{next(_numbers)}"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._name} TEMPLATE {template}")

    def app(self) -> Outlast:
        return Outlast(self._server.url(self._name))

    def store(self, vfs: str) -> Any:
        return connect(self._server.url(self._name))

    def copy(self, folder: Path) -> PostgresGround:
        folder.mkdir()
        return PostgresGround(self._server, folder, self._name)

    def begun(self) -> None:
        """Only what is written from now on counts: the rest is for other rigs."""
        self._armed = True

    def life(self, nth: int) -> None:
        die_at(nth, lambda: self._armed)
        asyncio.run(work(self, self.folder))

    def prepare(self) -> None:
        self._ask("CREATE TABLE @effects (n int NOT NULL, mark text NOT NULL)")

    def rows(self, text: str) -> list[Any]:
        return list(self._ask(text).fetchall())

    def _ask(self, text: str) -> Any:
        with psycopg.connect(self._server.url(self._name), autocommit=True) as connection:
            return connection.execute(text.replace("@", "outlast."))

    def verify(self) -> list[str]:
        return [wrong for (wrong,) in self.rows(_COUNTS)]


def die_at(nth: int, armed: Callable[[], bool]) -> None:
    """Before the n-th half: half a write is that nothing was sent yet, the other that it was."""
    kind: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    real = kind.write
    left = nth

    def write(self: Any, data: Any) -> None:
        nonlocal left
        left -= armed()
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, data)
        left -= armed()
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    kind.write = write


@contextmanager
def grounds() -> Iterator[Callable[[Path], PostgresGround]]:
    """A server for them all."""
    server = PostgresServer()
    server.start()
    try:
        yield lambda folder: PostgresGround(server, folder)
    finally:
        server.remove()
