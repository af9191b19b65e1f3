"""A Redis of the tests' own, a Celery producer in a process of its own, and an app of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.contrib.beside.pair import Pair, Producer
from tests.servers import RedisServer, shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def server() -> RedisServer:
    return shared(RedisServer)


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    """With nothing in it."""
    server.empty()
    return server


@pytest.fixture(scope="session")
def producer(server: RedisServer) -> Iterator[Producer]:
    producer = Producer(server.url())
    yield producer
    producer.close()


@pytest.fixture
def pair(redis: RedisServer, producer: Producer, tmp_path: Path) -> Pair:
    return Pair(redis, producer, tmp_path)
