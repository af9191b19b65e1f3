"""Jobs on a Redis or Valkey server, in its lists and hashes; scripts there do each step whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Durability, Store

__all__ = ["open_redis"]


def open_redis(
    url: str,
    *,
    namespace: str = "default",
    durability: Durability | None = None,
    create: bool = True,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> Store:
    """The store of a namespace on a server; ``url`` is one that redis-py reads.

    Raises ``ConfigurationError`` if redis-py isn't installed or the URL can't be meant.
    """
    try:
        import hiredis  # noqa: F401  (the fast half of the driver; the store needs it too)
        import redis  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            f"Redis and Valkey need the driver redis-py with hiredis, and {error.name} is not"
            " installed: pip install 'outlast[redis]'"
        ) from None
    from outlast.stores.redis.address import read
    from outlast.stores.redis.store import RedisStore

    return RedisStore(
        read(url),
        namespace=namespace,
        durability=durability,
        create=create,
        clock=clock,
        chance=chance,
    )
