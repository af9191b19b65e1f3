"""Files for stores, and stores that are closed when their test is over; a broker."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests.servers import RabbitServer, shared

from outlast.stores.rabbitmq import declaring, outbox
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Opener(Protocol):
    def __call__(self, path: Path, **how: Any) -> SqliteStore: ...


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "jobs.db"


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens stores, and closes them when the test is over."""
    stores: list[SqliteStore] = []

    def make(path: Path, **how: Any) -> SqliteStore:
        store = SqliteStore(str(path), **how)
        stores.append(store)
        store.open_now()
        return store

    yield make
    for store in stores:
        store.close_now()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> RabbitServer:
    """The RabbitMQ that this process of tests has, with whatever other tests have left there."""
    # New queues are left alone for a moment in which the broker might die. Here it doesn't.
    monkeypatch.setattr(declaring, "SETTLE", 0.0)
    return shared(RabbitServer)


_names = itertools.count(1)


@pytest.fixture
def namespace() -> str:
    """One that no other test of stores has used on the broker."""
    return f"s{next(_names)}"


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes what the store waits for a broker short: to be called when that one will be away.

    Before, it may take its time: on a busy machine half a second is not much for a first job.
    """

    def begin() -> None:
        monkeypatch.setattr(outbox, "PATIENCE", 0.5)
        monkeypatch.setattr(outbox, "CONFIRM", 1.0)

    return begin
