"""Where the server is, or who knows where it is, and how a connection to it is opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from outlast.errors import ConfigurationError, OutlastError, StoreUnavailable
from outlast.stores.redis.faults import mapped
from outlast.stores.thread_loop import read_sparingly

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

__all__ = [
    "ANSWERS_WITHIN",
    "Address",
    "Wish",
    "ask",
    "dial",
    "hang_up",
    "read",
    "see_that_it_lives",
    "send",
]

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0
ANSWERS_WITHIN = 20.0
"""Seconds that a server has for all that is asked of it at first. One that is frozen, or behind a
line that is cut, may be connected to, and never answers."""
SENTINEL_TIMEOUT = NODE_TIMEOUT = 2.0
PORT, SENTINEL_PORT = 6379, 26379
_KNOWN = ("db", "username", "password", "client_name")
_OF_SENTINELS = ("sentinel", "sentinel_username", "sentinel_password")
_OURS = (*_OF_SENTINELS, "ack", "replicas")


class Wish(Struct, frozen=True, kw_only=True):
    """What the URL asks to be waited for before a write counts as done."""

    file: bool = False
    """``ack=waitaof``: that the server has synced its file."""
    replicas: int = 0
    """``replicas=``: that so many of them have it, too."""


class Address(Struct, frozen=True, kw_only=True):
    """A server. ``shown`` is its URL without any secret; ``settings`` are those of the driver.

    With a ``master``, the ``sentinels`` are asked where the server of that name is; ``login`` is
    for them. Without, ``nodes`` are those of a cluster that may be asked, if several are named.
    """

    shown: str
    settings: Mapping[str, Any]
    nodes: Sequence[tuple[str, int]] = ()
    master: str | None = None
    sentinels: Sequence[tuple[str, int]] = ()
    login: Mapping[str, str] = {}
    wish: Wish = Wish()

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read(url: str) -> Address:
    """Read a URL of redis-py. Raises ``ConfigurationError``."""
    parts = urlsplit(url)
    user = quote(parts.username, safe="") + "@" if parts.username else ""
    if user and parts.password is None:
        user = "***@"  # without a colon, a password is taken for the user's name
    place = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{user}{place}{parts.path}"
    names = dict(parse_qsl(parts.query))
    told = [(name, names[name]) for name in ("db", "sentinel", "ack", "replicas") if name in names]
    shown += f"?{urlencode(told)}" if told else ""
    for name in names:
        if name not in (*_KNOWN, *_OURS) and not name.startswith("ssl_"):
            raise ConfigurationError(f"{shown}: no option is called {name!r}")
    wish = _wish(names, shown)
    theirs = urlencode([pair for pair in names.items() if pair[0] not in _OURS])
    hosts = place.split(",")
    one = parts.netloc[: len(parts.netloc) - len(place)] + hosts[0]
    try:
        settings = dict(parse_url(urlunsplit((parts.scheme, one, parts.path, theirs, ""))))
        named = _read_hosts(hosts, SENTINEL_PORT if "sentinel" in names else PORT)
    except ValueError as error:
        raise ConfigurationError(f"{shown} can't be read: {error}") from None
    if "sentinel" not in names:
        nodes = named if len(named) > 1 else ()
        return Address(shown=shown, settings=settings, wish=wish, nodes=nodes)
    return Address(
        shown=shown,
        settings=settings,
        wish=wish,
        master=names["sentinel"],
        sentinels=named,
        login={
            name: names[f"sentinel_{name}"]
            for name in ("username", "password")
            if f"sentinel_{name}" in names
        },
    )


def _read_hosts(hosts: Sequence[str], port: int) -> list[tuple[str, int]]:
    read = [urlsplit(f"//{host}") for host in hosts]
    return [(host.hostname or "", host.port or port) for host in read]


def _wish(names: Mapping[str, str], shown: str) -> Wish:
    ack, replicas = names.get("ack", ""), names.get("replicas", "0")
    if ack not in ("", "waitaof"):
        raise ConfigurationError(f"{shown}: ack={ack} is not known: write ack=waitaof, or nothing")
    if not (replicas.isascii() and replicas.isdecimal() and int(replicas) < 100):
        raise ConfigurationError(f"{shown}: replicas={replicas} is no number of replicas")
    return Wish(file=ack == "waitaof", replicas=int(replicas))


async def dial(address: Address, where: tuple[str, int] | None = None) -> AbstractConnection:
    """A connection, logged in. ``where`` is the node of a cluster that has what is looked for.

    Raises our errors.
    """
    if where is None and address.master is not None:
        where = await _master_of(address, address.master)
    settings = {**address.settings, "socket_timeout": None}
    settings["socket_connect_timeout"] = CONNECT_TIMEOUT
    if where is None and address.nodes:
        return await _any_of(address.nodes, settings, address.shown)
    if where is not None:
        settings["host"], settings["port"] = where
    return await _connected(settings, address.shown)


async def _any_of(
    nodes: Sequence[tuple[str, int]], settings: Mapping[str, Any], shown: str
) -> AbstractConnection:
    """The first that answers: each knows which of them has what is looked for."""
    *others, (last_host, last_port) = nodes
    for host, port in others:
        try:
            async with asyncio.timeout(NODE_TIMEOUT):
                return await _connected({**settings, "host": host, "port": port}, shown)
        except (StoreUnavailable, TimeoutError) as error:
            _log.debug("node %s:%d: %s", host, port, error)
    return await _connected({**settings, "host": last_host, "port": last_port}, shown)


async def _master_of(address: Address, name: str) -> tuple[str, int]:
    """Where the server is now, by the first sentinel that knows."""
    settings = {key: value for key, value in address.settings.items() if key not in _KNOWN}
    settings |= {"socket_connect_timeout": SENTINEL_TIMEOUT, "socket_timeout": SENTINEL_TIMEOUT}
    why = "none of them answers"
    for host, port in address.sentinels:
        connection = None
        try:
            at = {"host": host, "port": port, **address.login}
            connection = await _connected({**settings, **at}, f"sentinel {host}:{port}")
            found = await ask(connection, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
            if found is not None:
                return found[0].decode(), int(found[1])
            why = f"they know of no master {name!r}"
        except (OutlastError, RedisError, OSError) as error:
            _log.debug("sentinel %s:%d: %s", host, port, error)
        finally:
            if connection is not None:
                await hang_up(connection)
    raise StoreUnavailable(f"{address.shown}: the sentinels can't say where the server is: {why}")


class _Tls(SSLConnection):
    """Doesn't wait for the other side's goodbye when it is closed, whoever closes it."""

    async def disconnect(self, *args: Any, **options: Any) -> None:
        writer = self._writer
        await super().disconnect(*args, **options)
        if writer is not None:
            writer.transport.abort()


async def _connected(settings: dict[str, Any], shown: str) -> AbstractConnection:
    kind = settings.pop("connection_class", Connection)
    if kind is SSLConnection:
        kind = _Tls
    settings |= {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
    if kind is not Connection and "path" in settings:
        settings.pop("host", None)
    else:
        settings["socket_keepalive"] = True
    try:
        connection: AbstractConnection = kind(**settings)
    except TypeError as error:
        raise ConfigurationError(f"{shown}: {error}") from None
    connect: Callable[[], Awaitable[None]] = connection.connect
    try:
        await connect()
    except BaseException as error:
        # Cancelled midway, too: the driver would leave its socket open.
        await hang_up(connection)
        if isinstance(error, TypeError):
            raise ConfigurationError(f"{shown}: {error}") from None
        if isinstance(error, RedisError | OSError):
            raise mapped(error, shown) from error
        raise
    if connection._writer is not None:
        read_sparingly(connection._writer.transport)
    return connection


async def hang_up(connection: AbstractConnection) -> None:
    """Close it at once. The loop lets go of its socket in a few turns, and may be stopped then."""
    await connection.disconnect(nowait=True)
    for _ in range(10):
        await asyncio.sleep(0)


async def send(connection: AbstractConnection, packed: Sequence[bytes]) -> None:
    """What is packed already. Raises ``OSError`` where the connection was lost."""
    see_that_it_lives(connection)
    await connection.send_packed_command(packed, check_health=False)


def see_that_it_lives(connection: AbstractConnection) -> None:
    """Else the driver would connect anew, to a server at which nobody has looked.

    And where it hasn't noticed, Python 3.12 and 3.13 raise a TypeError of their own when lines are
    written. Raises ``OSError``.
    """
    writer = connection._writer
    if writer is None or writer.is_closing():
        raise ConnectionResetError("the connection was lost")


async def ask(connection: AbstractConnection, *command: str | bytes | float) -> Any:
    """One command and its answer, while nothing else is under way. Raises the driver's errors."""
    see_that_it_lives(connection)
    await connection.send_command(*command, check_health=False)
    return await connection.read_response(disable_decoding=True)
