"""Rebuilds indexes that disagree with their tables, which hold all there is to know."""

from __future__ import annotations

import logging

import apsw

from outlast.errors import StoreDamaged

__all__ = ["mend"]

_log = logging.getLogger(__name__)


def mend(connection: apsw.Connection, path: str) -> None:
    """Rebuild the indexes of a file in which SQLite found damage, if that makes it whole again.

    All or nothing, in one transaction that reads every page. Raises ``StoreDamaged``, saying what
    to do, if it is more than the indexes; nothing is changed then. And apsw's ``BusyError``.
    """
    connection.set_busy_timeout(30_000)
    try:
        connection.execute("BEGIN IMMEDIATE")
        found = _damage(connection)
        if found:
            connection.execute("REINDEX")
            left = _damage(connection)
            if left:
                raise _beyond_repair(path, left)
        connection.execute("COMMIT")
    except apsw.BusyError:
        raise
    except apsw.Error as error:
        raise _beyond_repair(path, str(error)) from error
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.set_busy_timeout(0)
    if found:
        _log.error(
            "an index of %s did not agree with its table any more (%s). It was rebuilt, and nothing"
            " was lost; but bits have flipped: check the disk, and run outlast doctor --deep",
            path, found,
        )  # fmt: skip


def _damage(connection: apsw.Connection) -> str:
    """What SQLite finds wrong first, or nothing."""
    found = connection.execute("PRAGMA integrity_check(1)").get
    return "" if found == "ok" else " ".join(str(found).split())


def _beyond_repair(path: str, found: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged ({found}), and rebuilding its indexes does not help. Nothing was"
        " changed. Stop what uses it, keep a copy with its -wal, and restore a backup;"
        " outlast doctor --deep says what can still be read"
    )
