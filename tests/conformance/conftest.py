"""The stores that the suite runs over, each with a clock of the test's own."""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import FullStore
from tests.fakes import FakeClock
from tests.servers import PostgresServer, RedisServer, shared

from outlast.chance import SeededChance
from outlast.store import Durability
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KINDS = ("memory", "sqlite", "postgresql", "redis")

_names = itertools.count(1)


class Place:
    """Where the jobs of one test are: any number of handles, one clock, one URL."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.clock = FakeClock()
        self._chance = SeededChance(7)
        self._opened: list[FullStore] = []

    def connect(self, namespace: str = "default") -> FullStore:
        """A handle that is not open yet."""
        required = Durability.MEMORY if self.kind == "memory" else Durability.PROCESS
        store = connect(
            self.url,
            namespace=namespace,
            durability=required,
            clock=self.clock,
            chance=self._chance,
        )
        assert isinstance(store, FullStore)
        self._opened.append(store)
        return store

    async def open(self, namespace: str = "default") -> FullStore:
        """One more handle on the same jobs."""
        store = self.connect(namespace)
        await store.open()
        return store

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()

    async def reopen(self) -> FullStore:
        """Close every handle, as at the end of a program, and open a first one anew."""
        await self.close()
        return await self.open()


def _has_sqlite() -> bool:
    try:
        return hasattr(importlib.import_module("outlast.stores.sqlite"), "open_sqlite")
    except ImportError:
        return False


def _param(kind: str) -> Any:
    needs = {"postgresql": "servers", "redis": "redis"}
    marks = [pytest.mark.needs(needs[kind])] if kind in needs else []
    return pytest.param(kind, marks=marks)


@pytest.fixture(params=map(_param, KINDS))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    kind = request.param
    if kind == "sqlite" and not _has_sqlite():
        pytest.skip("NOT TESTED: outlast.stores.sqlite is not there")
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else f"memory://t{next(_names)}"
    if kind == "redis":
        redis = shared(RedisServer)
        redis.empty()
        url = redis.url()
    if kind == "postgresql":
        server = shared(PostgresServer)
        await server.empty()
        url = server.url()
    place = Place(kind, url)
    yield place
    await place.close()


@pytest.fixture
async def store(place: Place) -> FullStore:
    return await place.open()


@pytest.fixture
def clock(place: Place) -> FakeClock:
    return place.clock
