"""Jobs in this process's memory: for tests, and for work that may die with the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.stores.memory.registry import Registry
from outlast.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Durability

__all__ = ["MemoryStore", "open_memory"]


def open_memory(
    name: str = "",
    *,
    namespace: str = "default",
    durability: Durability | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> MemoryStore:
    """A store, not opened yet, on the room of that name; without a name, on a room of its own."""
    house = Registry.house(name)
    return MemoryStore(house, namespace, durability=durability, clock=clock, chance=chance)
