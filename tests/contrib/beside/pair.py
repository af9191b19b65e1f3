"""An app of ours and a Celery app on one Redis."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from datetime import date, datetime  # noqa: TC003  read at run time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID  # noqa: TC003  read at run time

from celery import Celery, signature

from outlast import Outlast

if TYPE_CHECKING:
    from tests.servers import RedisServer

__all__ = ["PATIENCE", "ROOT", "Failed", "Pair", "Producer", "shapes"]

PATIENCE = 60.0
ROOT = Path(__file__).parents[3]

shapes = Celery("shapes", broker="memory://", set_as_current=False)
"""Makes signatures and sends none."""


class Failed(Exception):
    """What Celery raised where the result was asked for."""


class Producer:
    """A Celery producer in a process of its own: one for all tests of this process."""

    def __init__(self, url: str, **config: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contrib.beside.theirs"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "BROKER": url, "CONFIG": json.dumps(config)},
        )  # fmt: skip

    def ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def send(self, name: str, *args: Any, options: Any = None, **kwargs: Any) -> str:
        """The id."""
        return str(self.ask(send=name, args=args, kwargs=kwargs, options=options or {}))

    def get(self, id_: str) -> Any:
        """What Celery's own backend says of it. Raises ``Failed``."""
        found = self.ask(get=id_)
        if "error" in found:
            raise Failed(f"{found['state']} {found['error']}: {found['text']}")
        return found["value"]

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)


class Pair:
    """``s`` makes signatures of Celery's; the rest speaks to its producer."""

    def __init__(self, redis: RedisServer, producer: Producer, folder: Path) -> None:
        self.redis = redis
        self.producer = producer
        self.ran: list[Any] = []
        self.app = app = Outlast(f"sqlite:///{folder}/jobs.db")

        @app.task
        async def add(x: int, y: int) -> int:
            self.ran.append((x, y))
            return x + y

        @app.task
        def total(numbers: list[int]) -> int:
            self.ran.append(numbers)
            return sum(numbers)

        @app.task
        def boom(text: str) -> None:
            raise ValueError(text)

        @app.task
        async def say(*words: Any, **more: Any) -> list[Any]:
            self.ran.append([*words, more])
            return [*words, more]

        @app.task
        async def when(moment: datetime, day: date, id: UUID, data: bytes) -> str:
            self.ran.append([moment, day, id, data])
            return moment.isoformat()

        app.celery_tasks(
            {"add": add, "total": total, "boom": boom, "say": say, "when": when},
            broker=redis.url(),
            backend=redis.url(),
        )

    def s(self, name: str, *args: Any, **options: Any) -> Any:
        return signature(name, args=args, app=shapes, **options)

    async def send(self, name: str, *args: Any, options: Any = None, **kwargs: Any) -> str:
        return await asyncio.to_thread(self.producer.send, name, *args, options=options, **kwargs)

    async def apply(self, work: Any) -> str:
        return str(await asyncio.to_thread(self.producer.ask, apply=work))

    async def get(self, id_: str) -> Any:
        return await asyncio.to_thread(self.producer.get, id_)

    async def done(self, work: Any) -> Any:
        """Apply a signature and wait for its result."""
        return await self.get(await self.apply(work))
