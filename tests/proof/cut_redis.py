"""Real power cuts under private Redis or Valkey servers, one for each setting of what they keep.

As root: ``python -m tests.proof.cut_redis --rounds 20 --load redis-always``. The server's folder is
on the file system that is cut; it runs on until then, and dies with it.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from tests.proof.actors import drained_in_child, live
from tests.proof.cut import Outcome, judged, main
from tests.proof.processes import in_child
from tests.servers import RedisServer

from outlast.doctor import examine
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.proof.cut import Load
    from tests.proof.journal import Journal

    from outlast.store import Store

__all__ = ["LOADS"]


class Redis:
    """Two processes on a server: they add, claim and settle, until the power goes."""

    children = 2
    size = 48 << 20

    def __init__(self, query: str, **settings: str) -> None:
        self.query = query
        self.settings = settings
        self.server: RedisServer | None = None

    def lay(self, folder: Path) -> None:
        """Nothing: the server makes its files under load."""

    def predict(self, folder: Path) -> str:
        """What doctor says of the server, in words of the enum."""
        answer = folder / "said"

        def look() -> None:
            answer.write_text(str(asyncio.run(examine(self.url(folder))).accepted))

        self.prepare(folder)
        try:
            in_child(look, 60)
            return answer.read_text()
        finally:
            self.end()

    def prepare(self, folder: Path) -> None:
        """Start it; the namespace is made under load."""
        data = folder / "redis"
        data.mkdir(exist_ok=True)
        self.server = RedisServer(**self.settings, dir=str(data))
        self.server.start()

    def url(self, folder: Path) -> str:
        """Where the store is, on a disk that is mounted there."""
        assert self.server is not None
        return self.server.url(query=self.query)

    def _store(self, folder: Path) -> Store:
        return connect(self.url(folder))

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        asyncio.run(live(lambda: self._store(folder), journal, os.getpid(), lease=2.0))

    def end(self) -> None:
        """At once: what it had not yet given to the disk is gone with the file system."""
        server, self.server = self.server, None
        if server is not None:
            server.remove()

    def judge(self, folder: Path, witness: Path) -> Outcome:
        self.prepare(folder)
        try:
            final = drained_in_child(lambda: self._store(folder), witness, witness / "final.json")
        finally:
            self.end()
        return judged(witness, final)


LOADS: Mapping[str, Callable[[], Load]] = {
    "redis-always": lambda: Redis("", appendfsync="always"),
    "redis-everysec": lambda: Redis("durability=process", appendfsync="everysec"),
    "redis-no": lambda: Redis("durability=process", appendfsync="no"),
    "redis-rdb": lambda: Redis("durability=memory", appendonly="no", save="1 1"),
    "redis-none": lambda: Redis("durability=memory", appendonly="no"),
    "redis-waitaof": lambda: Redis("ack=waitaof", appendfsync="everysec"),
}
"""The last one needs Redis 7.2 or Valkey."""


if __name__ == "__main__":
    main(LOADS)
