"""What the disk and SQLite alone can do: the plainest durable loops on apsw, as a yardstick.

WAL, ``synchronous=FULL``, a table of three columns with one partial index. Every figure of outlast
is shown beside one of these, taken in the same run.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["Raw", "drain", "fill", "sync_time"]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS q (id INTEGER PRIMARY KEY, state INT NOT NULL DEFAULT 0,"
    " payload TEXT NOT NULL)"
)
_INDEX = "CREATE INDEX IF NOT EXISTS q0 ON q (id) WHERE state = 0"
_ADD = "INSERT INTO q (payload) VALUES (?)"
_TAKE = (
    "UPDATE q SET state = 1 WHERE id IN (SELECT id FROM q WHERE state = 0 ORDER BY id LIMIT 100)"
    " RETURNING id, payload"
)


def connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(20_000)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute(_TABLE)
    connection.execute(_INDEX)
    return connection


class Raw:
    """Puts rows in: one a commit, or whatever is waiting in one commit, or a batch a commit."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._flushing: asyncio.Task[None] | None = None

    async def put(self, payload: str) -> None:
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((payload, done))
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flush())
        await done

    def put_many(self, payloads: Sequence[str]) -> None:
        with self._connection:
            self._connection.executemany(_ADD, [(payload,) for payload in payloads])

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            payloads = [payload for payload, _ in batch]
            if len(batch) == 1:
                self.put_many(payloads)
            else:
                await asyncio.to_thread(self.put_many, payloads)
            for _, done in batch:
                done.set_result(None)
            await asyncio.sleep(0)
        self._flushing = None

    def close(self) -> None:
        self._connection.close()


def fill(path: Path, payload: str, number: int) -> None:
    raw = Raw(path)
    for at in range(0, number, 1000):
        raw.put_many([payload] * min(1000, number - at))
    raw.close()


def drain(path: Path, work: Callable[[Any], None]) -> int:
    """Take a hundred, delete the hundred before in the same commit, until nothing is left."""
    connection = connect(path)
    done: list[tuple[Any]] = []
    total = 0
    while True:
        with connection:
            connection.executemany("DELETE FROM q WHERE id = ?", done)
            rows = connection.execute(_TAKE).fetchall()
        if not rows:
            break
        for _, payload in rows:
            work(payload)
        done = [(number,) for number, _ in rows]
        total += len(rows)
    connection.close()
    return total


def sync_time(folder: Path, monotonic: Callable[[], float], times: int = 100) -> float:
    """Median seconds of ``fdatasync`` after 4 KiB, in this folder."""
    path = folder / "sync-probe"
    sync = getattr(os, "fdatasync", os.fsync)
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(times):
            file.write(bytes(4096))
            began = monotonic()
            sync(file.fileno())
            taken.append(monotonic() - began)
    path.unlink()
    return sorted(taken)[times // 2]
