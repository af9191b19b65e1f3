"""The write-ahead log: how much of it is not copied into the database yet, and when it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

from outlast.stores.sqlite.faults import is_full

if TYPE_CHECKING:
    from outlast.stores.sqlite.files import Ballast

__all__ = ["Log"]

PAGE = 4096
CHECKPOINT_PAGES = 2000
"""Pages of log after which it is copied into the database: 8 MiB."""
RESTART_PAGES = 16 * CHECKPOINT_PAGES
"""Pages of log after which we wait for readers so as to start the log anew."""
PATIENCE = 500
"""Milliseconds of that wait."""


class Log:
    """The log of the writer's connection. Raises apsw's errors, but for a full disk."""

    def __init__(self, ballast: Ballast) -> None:
        self._ballast = ballast
        self._pages = 0
        self._copied = 0

    def watch(self, connection: apsw.Connection) -> None:
        """Follow what this connection commits; it has taken the place of the one before."""
        self._connection = connection
        connection.set_wal_hook(self._grown)

    def _grown(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:
            self._copied = 0
        self._pages = pages
        return apsw.SQLITE_OK

    def copy_if_due(self) -> None:
        """Copy it once it is long enough; if readers keep it from starting anew, wait for them."""
        if self._pages - self._copied < CHECKPOINT_PAGES:
            return
        if self._pages >= RESTART_PAGES:
            self._copy(apsw.SQLITE_CHECKPOINT_RESTART, PATIENCE)
        else:
            self._copy(apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._copied = self._pages

    def start_anew(self) -> bool:
        """All of it copied, it is written from its start again and takes no more room."""
        if not self._pages:
            return False
        # Whatever comes of it, it is not tried again before something was committed.
        self._pages = self._copied = 0
        return self._copy(apsw.SQLITE_CHECKPOINT_RESTART, PATIENCE)

    def has_room(self) -> bool:
        """Whether the disk takes new work, and what the log holds goes into the database as well.

        Raises ``StoreUnavailable`` if it can't be looked at.
        """
        left = max(0, self._pages - self._copied)
        if self._ballast.room(left * PAGE):
            return True
        if not left:
            return False
        # All that is left was counted as growth, though much of it may be written over what is
        # there: once it is copied, that is known. Nobody else would copy it, since work that is
        # refused commits nothing.
        try:
            mode = apsw.SQLITE_CHECKPOINT_PASSIVE
            self._pages, self._copied = self._connection.wal_checkpoint(mode=mode)
        except apsw.Error as error:
            if not is_full(error, self._connection):
                raise
            return False
        return self._ballast.room((self._pages - self._copied) * PAGE)

    def _copy(self, mode: int, patience: int = 0) -> bool:
        """Copy it, into the room that the ballast takes if there is no other; whether all went."""
        try:
            self._connection.set_busy_timeout(patience)
            try:
                self._connection.wal_checkpoint(mode=mode)
            except apsw.Error as error:
                if not (is_full(error, self._connection) and self._ballast.drop()):
                    raise
                self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            if not is_full(error, self._connection):
                raise
            return False
        finally:
            self._connection.set_busy_timeout(0)
        return True
