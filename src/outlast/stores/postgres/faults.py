"""Errors of the driver and the server, and what they mean to callers: mapped in this one place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import asyncpg

from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    SchemaMismatch,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.stores.postgres.op import Op

__all__ = [
    "AGAIN",
    "MOVED",
    "POOLED",
    "Careful",
    "Dropped",
    "Refused",
    "Repeat",
    "is_again",
    "is_lost",
    "is_ours",
    "is_theirs",
    "mapped",
]


class Careful(Exception):
    """Something in the batch is there already or is gone: do it again, looking at each first."""


class Refused(Exception):
    """One call of a group can't be done; the others are to be done without it."""

    def __init__(self, op: Op[Any], error: Exception) -> None:
        super().__init__(str(error))
        self.op = op
        self.error = error


class Repeat(Exception):
    """Something changed under our hands: roll back and do it again."""


AGAIN = (
    Repeat,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.exceptions.OutdatedSchemaCacheError,
    asyncpg.InvalidCachedStatementError,
)
"""The transaction was rolled back, and doing it again is right."""

POOLED = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)
"""What a pooler in transaction mode does to statements that were prepared."""

_CLASHES = ("40001", "40P01")

MOVED = "OUTLM"
"""The SQLSTATE of what the triggers of a moved store raise; its message is the URL it went to."""

_DENIED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.InvalidCatalogNameError,
)
_MISSING = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidSchemaNameError,
)
_DAMAGED = (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)
_LOST = (
    OSError,
    EOFError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InternalClientError,
)


_SAID: Sequence[tuple[Any, type[StoreError], str]] = (
    (asyncpg.DiskFullError, StoreFull, "the server has no space left; nothing was stored"),
    (_DENIED, StoreUnavailable, "the server refuses us"),
    (
        asyncpg.LockNotAvailableError,
        StoreUnavailable,
        "somebody's open transaction holds what this needs; nothing was changed, and it may be"
        " tried again",
    ),
    (
        asyncpg.ReadOnlySQLTransactionError,
        StoreUnavailable,
        "the server takes no writes; is it a replica?",
    ),
    (_MISSING, SchemaMismatch, "the tables are not those of this outlast"),
    (_DAMAGED, StoreDamaged, "the server found damaged data"),
)
"""What each kind of error is to callers, and what it says to them."""

_KEYS = re.compile(r'relation "keys"')
_HELD = (
    "an open transaction, begun by some program on a connection of its own (app.joined), has"
    " enqueued a job with a key that is asked for here, and whoever asks for that key has to wait"
    " until it ends; it was waited for as long as may be. Nothing was changed, and it may be tried"
    " again: let that program enqueue late in its transaction and commit soon"
    " (pg_stat_activity shows who is idle in transaction)"
)


class Dropped(Exception):
    """The connection was lost; ``committing`` if the answer to a COMMIT is what is missing."""

    def __init__(self, cause: BaseException, committing: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.committing = committing


def is_ours(error: BaseException) -> bool:
    """Whether it comes from the server, the driver or the network, and is to be mapped."""
    return isinstance(error, (Dropped, asyncpg.PostgresError, *_LOST))


def is_lost(error: BaseException) -> bool:
    """Whether the connection is of no use any more."""
    # The driver calls a value it can't encode an InterfaceError too; the connection is fine then.
    return isinstance(error, _LOST) and not isinstance(error, ValueError)


def is_again(error: BaseException) -> bool:
    """Whether a transaction that failed with it, on whatever driver, is rightly done again."""
    return isinstance(error, AGAIN) or getattr(error, "sqlstate", None) in _CLASHES


def is_theirs(error: BaseException) -> bool:
    """Whether it comes from a connection of the caller's, whatever driver that has."""
    package = type(error).__module__.partition(".")[0]
    return is_ours(error) or package in ("psycopg", "sqlalchemy")


def mapped(error: BaseException, url: str) -> StoreError | ConfigurationError:
    """The error of ours for one of the driver's. ``url`` is shown, so it must hold no secret."""
    if isinstance(error, Dropped):
        return mapped(error.cause, url)
    why = f"{type(error).__name__}: {error}".split("\n")[0][:300]
    if getattr(error, "sqlstate", None) == MOVED:
        return StoreMoved(f"the jobs of {url} were moved to {error}, or are on their way: use that")
    if isinstance(error, asyncpg.LockNotAvailableError) and _KEYS.search(error.context or ""):
        return StoreUnavailable(f"{url}: {_HELD} ({why})")
    for kinds, ours, text in _SAID:
        if isinstance(error, kinds):
            return ours(f"{url}: {text} ({why})")
    if isinstance(error, DurabilityError | StoreError | ConfigurationError):
        return error
    if isinstance(error, asyncpg.DataError | ValueError):
        return ConfigurationError(f"{url}: the server can't store that ({why})")
    return StoreUnavailable(f"{url}: {why}")
