"""The shelf of a store: where exchanges, queues, bindings and results are kept beside messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from outlast.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.store import Store
    from outlast.stores.postgres.store import PostgresStore
    from outlast.stores.redis.store import RedisStore
    from outlast.stores.sqlite.store import SqliteStore

__all__ = ["Shelf", "shelf_of"]


class Shelf(Protocol):
    """Small values by key. Each call blocks, and is durable when it returns."""

    def put(self, values: Mapping[str, bytes], ttl: float | None = None) -> None: ...
    def count(self, key: str, ttl: float | None = None, once: str | None = None) -> int: ...
    def keep(self, keys: Sequence[str], ttl: float | None) -> None: ...
    def drop(self, keys: Sequence[str]) -> None: ...
    def tidy(self, limit: int) -> list[str]: ...
    def get(self, keys: Sequence[str]) -> list[bytes | None]: ...
    def starting(self, prefix: str) -> dict[str, bytes]: ...


def shelf_of(store: Store) -> Shelf:
    """The shelf of an open store. Raises ``Unsupported`` where there is none."""
    scheme = store.url.partition(":")[0]
    if scheme == "sqlite":
        from outlast.stores.sqlite.shelf import SqliteShelf

        return SqliteShelf(cast("SqliteStore", store))
    if scheme == "postgresql":
        from outlast.stores.postgres.shelf import PostgresShelf

        return PostgresShelf(cast("PostgresStore", store))
    if scheme in ("redis", "rediss"):
        from outlast.stores.redis.shelf import RedisShelf

        return RedisShelf(cast("RedisStore", store))
    raise Unsupported(
        f"Celery can't use {store.url} as its broker: use outlast+sqlite:///path/to/file.db, "
        "outlast+postgresql://user@host/database or outlast+redis://host/0"
    )
