"""SQLite's errors: the one place where they become ours, and what each says of the file."""

from __future__ import annotations

import errno

import apsw
import msgspec

from outlast.errors import StoreDamaged, StoreError, StoreFull, StoreMoved, StoreUnavailable

__all__ = ["MOVED", "OF_ONE_CALL", "UNREADABLE", "Doubtful", "is_full", "mapped"]

MOVED = "moved: "
"""How the errors begin that the triggers of a moved store raise."""

OF_ONE_CALL = (apsw.SQLError, apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)
"""Errors that tell of one statement and its data, and nothing of the file."""

UNREADABLE = (UnicodeDecodeError, msgspec.MsgspecError)
"""What reading a row raises whose text, or JSON, is none any more: bits have flipped."""

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Doubtful(Exception):
    """The commit was made, but maybe not in the file that the next one to open will find."""

    def __init__(self, cause: StoreError) -> None:
        self.cause = cause


def mapped(error: Exception, path: str) -> StoreError:
    """The one place where SQLite's errors become ours, and those of rows that can't be read."""
    if isinstance(error, UNREADABLE):
        return StoreDamaged(f"a row of {path} can't be read ({error}); run outlast doctor on it")
    if isinstance(error, apsw.FullError):
        return StoreFull(f"no space left on the disk of {path}; nothing was stored")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(
            f"{path} is damaged or not a database ({error}); run outlast doctor on it"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StoreUnavailable(f"{path} stays locked by another process ({error})")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreUnavailable(f"{path} can't be written: {error}")
    if isinstance(error, apsw.ConstraintError) and MOVED in str(error):
        # By a trigger; see the module on moving.
        to = str(error).partition(MOVED)[2]
        return StoreMoved(f"the jobs of {path} were moved to {to}, or are on their way: use that")
    return StoreUnavailable(f"{path}: {error}")


def is_full(error: apsw.Error, connection: apsw.Connection) -> bool:
    """No space, no quota left, or the file may not grow: the system refused before it wrote."""
    if isinstance(error, apsw.FullError):
        return True
    return isinstance(error, apsw.IOError) and connection.system_errno in _NO_SPACE
