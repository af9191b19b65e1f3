"""Files for stores, and stores that are closed when their test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator
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
