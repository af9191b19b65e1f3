"""The one place where the rigs make the store they try."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.store import Durability
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.chance import Chance
    from outlast.clock import Clock

__all__ = ["sqlite_store"]


def sqlite_store(
    path: Path,
    *,
    durability: Durability = Durability.POWER,
    vfs: str | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> SqliteStore:
    """A store on that file, not opened yet; ``vfs`` names a file layer of the rig."""
    return SqliteStore(str(path), durability=durability, vfs=vfs, clock=clock, chance=chance)
