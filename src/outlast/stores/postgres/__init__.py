"""Jobs in a PostgreSQL database, shared by any number of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Durability
    from outlast.stores.postgres.store import PostgresStore

__all__ = ["open_postgres"]


def open_postgres(
    url: str,
    options: Mapping[str, str],
    *,
    namespace: str = "default",
    durability: Durability | None = None,
    create: bool = True,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> PostgresStore:
    """A store on that server, not opened yet. ``url`` is for the driver, ``options`` are ours.

    Raises ``ConfigurationError`` where the driver is not installed, or for an option.
    """
    try:
        import asyncpg  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "a postgresql:// URL needs the driver asyncpg: pip install 'outlast[postgres]'"
        ) from None
    from outlast.stores.postgres.address import Address
    from outlast.stores.postgres.store import PostgresStore

    return PostgresStore(
        Address(url, options),
        namespace=namespace,
        durability=durability,
        create=create,
        clock=clock,
        chance=chance,
    )
