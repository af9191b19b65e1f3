"""A shelf beside the jobs of one namespace: small values by key, which may pass away in time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from outlast.stores.sqlite.op import Op
from outlast.stores.sqlite.rows import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.stores.sqlite.ledger import Reads
    from outlast.stores.sqlite.moves import Moves
    from outlast.stores.sqlite.store import SqliteStore

__all__ = ["SqliteShelf"]

T = TypeVar("T")

_TABLE = (
    "CREATE TABLE IF NOT EXISTS outlast_shelf (space INTEGER NOT NULL, key TEXT NOT NULL,"
    " value BLOB NOT NULL, until REAL, PRIMARY KEY (space, key)) WITHOUT ROWID"
)
_OVER = (
    "CREATE INDEX IF NOT EXISTS outlast_shelf_until ON outlast_shelf (until)"
    " WHERE until IS NOT NULL"
)
_THERE = "SELECT count(*) FROM sqlite_master WHERE name IN ('outlast_shelf', 'outlast_shelf_until')"
_PUT = (
    "INSERT INTO outlast_shelf (space, key, value, until) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET value = excluded.value, until = excluded.until"
)
_COUNT = (
    "INSERT INTO outlast_shelf (space, key, value, until) VALUES (?1, ?2, '1', ?3)"
    " ON CONFLICT DO UPDATE SET value = iif(until <= ?4, '1', CAST(CAST(value AS INTEGER) + 1"
    " AS TEXT)), until = iif(until <= ?4, excluded.until, until) RETURNING value"
)
_KEEP = "UPDATE outlast_shelf SET until = ? WHERE space = ? AND key = ? AND until > ?"
_DROP = "DELETE FROM outlast_shelf WHERE space = ? AND key = ?"
_TIDY = (
    "DELETE FROM outlast_shelf WHERE (space, key) IN (SELECT space, key FROM outlast_shelf"
    " WHERE until <= ? AND space = ? LIMIT ?) RETURNING key"
)
_GET = "SELECT value FROM outlast_shelf WHERE space = ? AND key = ? AND ifnull(until, 9e999) > ?"
_STARTING = (
    "SELECT key, value FROM outlast_shelf WHERE space = ? AND key >= ? AND key < ?"
    " AND ifnull(until, 9e999) > ? ORDER BY key"
)


class SqliteShelf:
    """For callers that can't await: each call blocks, and is durable when it returns.

    Its writes share the commits of the store's other calls. It has a table of its own, made when
    the first shelf is opened. ``ttl`` is in seconds; None means for ever.
    """

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        if store._reading().now(_there) < 2:
            self._do(_make)

    def put(self, values: Mapping[str, bytes], ttl: float | None = None) -> None:
        """Store all of these or none, in place of what has these keys."""
        self._do(partial(_put, values=values, ttl=ttl))

    def count(self, key: str, ttl: float | None = None, once: str | None = None) -> int:
        """One more than the last time, from 1 on; the same number is never answered twice.

        Under the key ``once`` the number is kept, and answered again to whoever repeats it.
        """
        return self._do(partial(_count, key=key, ttl=ttl, once=once))

    def keep(self, keys: Sequence[str], ttl: float | None) -> None:
        """Let those that are still there, and would pass away, last from now on for ``ttl``."""
        if keys:
            self._do(partial(_keep, keys=keys, ttl=ttl), synced=False)

    def drop(self, keys: Sequence[str]) -> None:
        """Delete what has these keys."""
        if keys:
            self._do(partial(_drop, keys=keys))

    def tidy(self, limit: int) -> list[str]:
        """Delete at most so many values whose time is over; their keys."""
        return self._do(partial(_tidy, limit=limit), synced=False)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values, aligned with the keys."""
        return self._read(partial(_get, keys=keys, now=self._store.clock.now()))

    def starting(self, prefix: str) -> dict[str, bytes]:
        """All values whose keys begin so, in order."""
        return self._read(partial(_starting, prefix=prefix, now=self._store.clock.now()))

    def _do(self, run: Callable[[Moves], T], *, synced: bool = True) -> T:
        return self._store._hand_over(Op(run, synced)).result()

    def _read(self, run: Callable[[Reads], T]) -> T:
        return self._store._reading().now(run)


def _there(reads: Reads) -> int:
    return int(reads.connection.execute(_THERE).get)


def _make(moves: Moves) -> None:
    moves.connection.execute(_TABLE)
    moves.connection.execute(_OVER)


def _until(moves: Moves, ttl: float | None) -> float | None:
    return None if ttl is None else moves.clock.now() + ttl


def _put(moves: Moves, values: Mapping[str, bytes], ttl: float | None) -> None:
    until = _until(moves, ttl)
    for key, value in values.items():
        moves.connection.execute(_PUT, (moves.space, key, value, until))


def _count(moves: Moves, key: str, ttl: float | None, once: str | None) -> int:
    now = moves.clock.now()
    if once is not None:
        counted = moves.connection.execute(_GET, (moves.space, once, now)).get
        if counted is not None:
            return int(counted)
    values = (moves.space, key, _until(moves, ttl), now)
    number = int(moves.connection.execute(_COUNT, values).get)
    if once is not None:
        _put(moves, {once: b"%d" % number}, ttl)
    return number


def _keep(moves: Moves, keys: Sequence[str], ttl: float | None) -> None:
    for key in keys:
        moves.connection.execute(_KEEP, (_until(moves, ttl), moves.space, key, moves.clock.now()))


def _drop(moves: Moves, keys: Sequence[str]) -> None:
    for key in keys:
        moves.connection.execute(_DROP, (moves.space, key))


def _tidy(moves: Moves, limit: int) -> list[str]:
    return [key for (key,) in fetch(moves.connection, _TIDY, moves.clock.now(), moves.space, limit)]


def _get(reads: Reads, keys: Sequence[str], now: float) -> list[bytes | None]:
    space = reads.space()
    return [_plain(reads.connection.execute(_GET, (space, key, now)).get) for key in keys]


def _starting(reads: Reads, prefix: str, now: float) -> dict[str, bytes]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    rows = fetch(reads.connection, _STARTING, reads.space(), prefix, end, now)
    return {key: _plain(value) or b"" for key, value in rows}


def _plain(value: bytes | str | None) -> bytes | None:
    """A counter is text in the table."""
    return value.encode() if isinstance(value, str) else value
