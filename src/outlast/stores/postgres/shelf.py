"""A shelf beside the jobs of one namespace: small values by key, which may pass away in time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from outlast.stores.postgres.op import Op, reading
from outlast.stores.postgres.schema import lock_number

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from outlast.stores.postgres.store import PostgresStore
    from outlast.stores.postgres.turn import Turn

__all__ = ["PostgresShelf"]

T = TypeVar("T")

_THERE = "SELECT to_regclass($1) IS NOT NULL"
_LOCK = "SELECT pg_advisory_xact_lock($1)"
_TABLE = (
    'CREATE TABLE IF NOT EXISTS @shelf (key text COLLATE "C" PRIMARY KEY, value bytea NOT NULL,'
    " until double precision)"
)
_OVER = "CREATE INDEX IF NOT EXISTS shelf_until ON @shelf (until) WHERE until IS NOT NULL"
_PUT = (
    "INSERT INTO @shelf (key, value, until) SELECT k, v, $3"
    " FROM unnest($1::text[], $2::bytea[]) AS given (k, v) ORDER BY k"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value, until = excluded.until"
)
_COUNT = (
    "INSERT INTO @shelf AS s (key, value, until) VALUES ($1, '1', $2)"
    " ON CONFLICT (key) DO UPDATE SET value = CASE WHEN s.until <= $3 THEN '1'::bytea ELSE"
    " convert_to((convert_from(s.value, 'UTF8')::bigint + 1)::text, 'UTF8') END,"
    " until = CASE WHEN s.until <= $3 THEN excluded.until ELSE s.until END RETURNING value"
)
_KEEP = "UPDATE @shelf SET until = $2 WHERE key = ANY($1::text[]) AND until > $3"
_DROP = "DELETE FROM @shelf WHERE key = ANY($1::text[])"
_TIDY = (
    "DELETE FROM @shelf WHERE key IN (SELECT key FROM @shelf WHERE until <= $1"
    " LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING key"
)
_GET = "SELECT key, value FROM @shelf WHERE key = ANY($1::text[]) AND (until IS NULL OR until > $2)"
_STARTING = (
    "SELECT key, value FROM @shelf WHERE key >= $1 AND key < $2"
    " AND (until IS NULL OR until > $3) ORDER BY key"
)


class PostgresShelf:
    """As ``SqliteShelf``, in a table of the namespace's schema; times are by the server's clock."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        if not self._read(_there):
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
            self._do(partial(_keep, keys=keys, ttl=ttl))

    def drop(self, keys: Sequence[str]) -> None:
        """Delete what has these keys."""
        if keys:
            self._do(partial(_drop, keys=keys))

    def tidy(self, limit: int) -> list[str]:
        """Delete at most so many values whose time is over; their keys."""
        return self._do(partial(_tidy, limit=limit))

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values, aligned with the keys."""
        return self._read(partial(_get, keys=keys))

    def starting(self, prefix: str) -> dict[str, bytes]:
        """All values whose keys begin so, in order."""
        return self._read(partial(_starting, prefix=prefix))

    def _do(self, run: Callable[[Turn], Awaitable[T]]) -> T:
        return self._store._hand_over(Op(run)).result()

    def _read(self, run: Callable[[Turn], Awaitable[T]]) -> T:
        return self._store._hand_over(reading(run)).result()


async def _there(turn: Turn) -> bool:
    return bool(await turn.connection.fetchval(_THERE, turn.names["@shelf"]))


async def _make(turn: Turn) -> None:
    # Two that make it at once would both find it missing.
    await turn.connection.execute(_LOCK, lock_number(turn.names.schema, "shelf"))
    await turn.connection.execute(turn.names[_TABLE])
    await turn.connection.execute(turn.names[_OVER])


def _until(turn: Turn, ttl: float | None) -> float | None:
    return None if ttl is None else turn.now + ttl


async def _put(turn: Turn, values: Mapping[str, bytes], ttl: float | None) -> None:
    await turn.connection.execute(
        turn.names[_PUT], list(values), list(values.values()), _until(turn, ttl)
    )


async def _count(turn: Turn, key: str, ttl: float | None, once: str | None) -> int:
    if once is not None:
        (counted,) = await _get(turn, [once])
        if counted is not None:
            return int(counted)
    row = await turn.connection.fetchval(turn.names[_COUNT], key, _until(turn, ttl), turn.now)
    if once is not None:
        await _put(turn, {once: bytes(row)}, ttl)
    return int(row)


async def _keep(turn: Turn, keys: Sequence[str], ttl: float | None) -> None:
    await turn.connection.execute(turn.names[_KEEP], list(keys), _until(turn, ttl), turn.now)


async def _drop(turn: Turn, keys: Sequence[str]) -> None:
    await turn.connection.execute(turn.names[_DROP], list(keys))


async def _tidy(turn: Turn, limit: int) -> list[str]:
    rows = await turn.connection.fetch(turn.names[_TIDY], turn.now, limit)
    return [row[0] for row in rows]


async def _get(turn: Turn, keys: Sequence[str]) -> list[bytes | None]:
    rows = await turn.connection.fetch(turn.names[_GET], list(keys), turn.now)
    found: dict[str, bytes] = {key: bytes(value) for key, value in rows}
    return [found.get(key) for key in keys]


async def _starting(turn: Turn, prefix: str) -> dict[str, bytes]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    rows = await turn.connection.fetch(turn.names[_STARTING], prefix, end, turn.now)
    return {key: bytes(value) for key, value in rows}
