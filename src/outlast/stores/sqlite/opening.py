"""What comes before a store is used: its place and files, its schema, a restart of the machine."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

import apsw

from outlast.errors import DurabilityError, StoreFull, StoreUnavailable
from outlast.stores.sqlite import files, schema
from outlast.stores.sqlite.steps import NEXT_EPOCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.store import Durability

__all__ = ["despite_a_full_disk", "prepare"]

_log = logging.getLogger(__name__)

_told: set[str] = set()
"""Files of whose place this process has warned."""

_KNOWN_BOOT = "SELECT value FROM meta WHERE name = 'boot'"
_ALL_OVERDUE = "UPDATE jobs SET lease = -1.0 WHERE state = 3"
_NEW_BOOT = "INSERT OR REPLACE INTO meta VALUES ('boot', ?)"


def prepare(
    path: str, required: Durability, *, create: bool, store_id: str, vfs: str | None
) -> Callable[[], apsw.Connection]:
    """See that a store of that class stands at ``path``; what connects to it from then on.

    Raises the errors of ``Store.open``, and apsw's own.
    """
    schema.check_library()
    is_there = files.look(path, create=create)
    if is_there:
        files.refuse_foreign_log(path)
        files.refuse_lost_log(path)
    best, why = files.path_durability(path)
    if required > best:
        raise DurabilityError(
            f"{why or f'{path} is one file on one disk'}: that is durability {best}, and"
            f" {required} was asked for; use another place, or ?durability={best}"
        )
    if why and path not in _told:
        # Once: a worker opens its store several times.
        _told.add(path)
        _log.warning("%s", why)
    if not is_there:
        files.make(path)
        files.prepare_companion(path)
    connect = partial(schema.connect, path, required, vfs)
    connection = connect()
    try:
        if is_there:
            # Only now: what is no store of ours gets no folder beside it, nor any advice.
            files.prepare_companion(path)
            files.tell_of_readers(path)
        schema.migrate(connection, path, store_id)
        _note_restart(connection)
    finally:
        connection.close()
    return connect


def despite_a_full_disk(path: str, attempt: Callable[[], None], ballast: files.Ballast) -> None:
    """SQLite needs a little room even to look: what the ballast keeps is for that as well.

    Raises what the attempt raises, and ``StoreFull`` if it was for want of room.
    """
    try:
        attempt()
    except (apsw.IOError, apsw.FullError, StoreUnavailable) as error:
        if not ballast.is_needed() or not os.path.exists(path):
            raise
        if not ballast.drop():
            raise StoreFull("the disk of the store is full; free a few MiB") from error
        attempt()


def _note_restart(connection: apsw.Connection) -> None:
    """After a restart of the machine nobody runs anything, and its clock begins anew."""
    boot = schema.boot_id()
    if not boot:
        return
    connection.set_busy_timeout(30_000)
    if connection.execute(_KNOWN_BOOT).get == boot:
        return
    # Only one of those that open at once may do it: the others have claims by then.
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if connection.execute(_KNOWN_BOOT).get != boot:
            connection.execute(_ALL_OVERDUE)
            connection.execute(_NEW_BOOT, (boot,))
            # A claim that was not synced may be made again, and is to have another fence.
            connection.execute(NEXT_EPOCH)
    connection.execute("COMMIT")
