"""What is asked of a server before it is trusted with jobs, and what may be promised there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import asyncpg

from outlast.errors import DurabilityError, StoreUnavailable
from outlast.store import Durability

if TYPE_CHECKING:
    from asyncpg import Connection

__all__ = [
    "OLDEST",
    "PLACE",
    "STANDBYS",
    "TIMELINE",
    "Line",
    "check_standbys",
    "commit_mode",
    "examine",
    "same_line",
]

_log = logging.getLogger(__name__)

OLDEST = 140_000
_SETTINGS = (
    "SELECT pg_is_in_recovery(), current_setting('fsync') = 'on',"
    " current_setting('synchronous_standby_names'), current_setting('server_version_num')::int,"
    " current_setting('transaction_read_only') = 'on', current_setting('server_encoding')"
)
STANDBYS = (
    "SELECT coalesce(bool_or(sync_state IS NULL OR sync_state IN ('sync', 'quorum')), false)"
    " FROM pg_stat_replication"
)
"""Whether there is one that commits wait for, as far as our role may see which these are."""

_NONE_NAMED = "synchronous_standby_names is empty there: name a standby that must have it too"

PLACE = (
    "(SELECT system_identifier::text FROM pg_catalog.pg_control_system())"
    " || ' ' || current_database()::text"
)
"""What is the same for two connections if, and only if, they are to one database of one server."""
TIMELINE = "pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)"
"""Another one after a standby was promoted: there the numbers of transactions are given anew."""

Line: TypeAlias = tuple[str, int]
"""A server's database, and the timeline it is on."""


def commit_mode(required: Durability) -> str:
    """The ``synchronous_commit`` of every transaction that promises something.

    One that was not waited for is gone as well when the server's processes alone are killed.
    """
    return "on" if required >= Durability.PROCESS else "off"


async def examine(connection: Connection, shown: str, required: Durability) -> Durability:
    """What an accepted job survives on this server.

    Raises ``DurabilityError`` if it is less than ``required``, ``StoreUnavailable`` for a replica.
    """
    row: Any = await connection.fetchrow(_SETTINGS)
    replica, fsync, standbys, version, read_only, encoding = row
    if replica or read_only:
        raise StoreUnavailable(
            f"{shown} takes no writes: it is a replica, or was made read-only. Name the primary"
        )
    if version < OLDEST:
        raise StoreUnavailable(f"{shown} is PostgreSQL {version // 10000}: outlast needs 14")
    if encoding != "UTF8":
        raise StoreUnavailable(f"{shown} keeps text as {encoding}: use a database with UTF8")
    found = min(required, Durability.POWER) if fsync else min(required, Durability.PROCESS)
    if required >= Durability.REPLICA and fsync and standbys:
        check_standbys(shown, standbys, await connection.fetchval(STANDBYS))
        found = Durability.REPLICA
    if found < required:
        why = "fsync is off there: turn it on" if not fsync else _NONE_NAMED
        raise DurabilityError(
            f"{shown} promises durability {found}, but {required} was asked for: {why}"
        )
    return found


async def same_line(connection: Connection, shown: str, before: Line) -> Line:
    """Which server a primary is and on which timeline: ``before`` is what it was the last time.

    A later one is warned of. An earlier one is ``StoreUnavailable``: the former primary is back.
    """
    try:
        server, line = await connection.fetchrow(f"SELECT {PLACE}, {TIMELINE}")
    except asyncpg.PostgresError:
        return before  # there are services that don't tell
    found = (server, int(line, 16))
    if found[0] == before[0] and found[1] < before[1]:
        raise StoreUnavailable(
            f"{shown} is on timeline {found[1]}, and was on {before[1]} before: a former primary is"
            " back, and what is stored there is lost to the one that was promoted. Stop it, or make"
            " it a standby"
        )
    if found[0] == before[0] and found[1] > before[1]:
        _log.warning(
            "%s: a standby was promoted (timeline %d, before %d): what was accepted last and had"
            " not come that far is gone, unless durability=replica was asked for",
            shown, found[1], before[1],
        )  # fmt: skip
    return found


def check_standbys(shown: str, names: str, connected: bool) -> None:
    """A commit there is on a standby too, by what the server says of ``STANDBYS`` now.

    Raises ``DurabilityError`` where it waits for none, ``StoreUnavailable`` where none is there.
    """
    if not names:
        raise DurabilityError(
            f"{shown} promises durability {Durability.POWER}, but {Durability.REPLICA} was asked"
            f" for: {_NONE_NAMED}"
        )
    if not connected:
        raise StoreUnavailable(
            f"{shown} waits for a standby with each commit (synchronous_standby_names ="
            f" {names!r}), and none of these is connected to it"
        )
