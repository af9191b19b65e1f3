"""Where the server is, and how a connection to it is opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct
from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from outlast.errors import ConfigurationError
from outlast.stores.redis.faults import mapped

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

__all__ = ["Address", "ask", "dial", "read"]

CONNECT_TIMEOUT = 10.0
_KNOWN = ("db", "username", "password", "client_name")


class Address(Struct, frozen=True, kw_only=True):
    """A server. ``shown`` is its URL without any secret; ``settings`` are those of the driver."""

    shown: str
    settings: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read(url: str) -> Address:
    """Read a URL of redis-py. Raises ``ConfigurationError``."""
    parts = urlsplit(url)
    user = quote(parts.username, safe="") + "@" if parts.username else ""
    place = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{user}{place}{parts.path}"
    names = dict(parse_qsl(parts.query))
    if "db" in names:
        shown += f"?db={names['db']}"
    for name in names:
        if name not in _KNOWN and not name.startswith("ssl_"):
            raise ConfigurationError(f"{shown}: no option is called {name!r}")
    try:
        settings = dict(parse_url(url))
    except ValueError as error:
        raise ConfigurationError(f"{shown} can't be read: {error}") from None
    return Address(shown=shown, settings=settings)


async def dial(address: Address, where: tuple[str, int] | None = None) -> AbstractConnection:
    """A connection, logged in. ``where`` is the node of a cluster that has what is looked for.

    Raises our errors.
    """
    settings = dict(address.settings)
    kind = settings.pop("connection_class", Connection)
    if where is not None:
        settings["host"], settings["port"] = where
    settings |= {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": None,
    }
    if kind is not Connection and "path" in settings:
        settings.pop("host", None)
    else:
        settings["socket_keepalive"] = True
    try:
        connection: AbstractConnection = kind(**settings)
        connect: Callable[[], Awaitable[None]] = connection.connect
        await connect()
    except TypeError as error:
        raise ConfigurationError(f"{address.shown}: {error}") from None
    except (RedisError, OSError) as error:
        raise mapped(error, address.shown) from error
    return connection


async def ask(connection: AbstractConnection, *command: str | bytes | float) -> Any:
    """One command and its answer, while nothing else is under way. Raises the driver's errors."""
    await connection.send_command(*command, check_health=False)
    return await connection.read_response(disable_decoding=True)
