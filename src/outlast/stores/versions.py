"""Which schema a store has, and which one this outlast makes: read without changing anything."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

__all__ = ["Versioned", "Versions"]


class Versions(Struct, frozen=True):
    """Numbers of schemas; they only grow."""

    found: int
    """That of the store, 0 if there is none yet."""
    known: int
    """That of this outlast."""

    @property
    def pending(self) -> int:
        """How many steps there are to go."""
        return max(0, self.known - self.found)


class Versioned(Protocol):
    """A store that has a schema."""

    async def versions(self) -> Versions:
        """Read on a connection of its own; the store needn't be open.

        Raises ``SchemaMismatch`` for one that this outlast can't work on, ``StoreUnavailable``.
        """
        ...
