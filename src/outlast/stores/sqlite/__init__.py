"""Jobs in one SQLite file on this machine, shared by any number of its processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Durability

__all__ = ["SqliteStore", "open_sqlite"]


def open_sqlite(
    path: str,
    *,
    namespace: str = "default",
    durability: Durability | None = None,
    create: bool = True,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> SqliteStore:
    """A store on that file, not opened yet; relative paths are meant from the current folder."""
    return SqliteStore(
        path,
        namespace=namespace,
        durability=durability,
        create=create,
        clock=clock,
        chance=chance,
    )
