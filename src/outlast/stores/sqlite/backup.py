"""Copies a store while it is in use: whole, verified, and under its name only when it is both."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import apsw

from outlast.errors import ConfigurationError, StoreDamaged, StoreFull, StoreUnavailable
from outlast.stores.sqlite.faults import mapped
from outlast.stores.sqlite.files import sync_folder
from outlast.stores.sqlite.forks import Forks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["backup"]

_COUNT = "SELECT count(*), ifnull(sum(state < 4), 0) FROM jobs"


def backup(connect: Callable[[], apsw.Connection], store: str, path: Path) -> dict[str, Any]:
    """Copy ``store``, as it is at one moment, to a new file; writers needn't stop.

    The file has mode 0600, as the store. Raises ``ConfigurationError`` if there is something of
    that name, ``StoreDamaged`` if the copy isn't sound, ``StoreFull`` if there is no room for it;
    then nothing is left of it.
    """
    try:
        with Forks.busy(store):
            connection = connect()
            try:
                return _backup(connection, path)
            finally:
                connection.close()
    except apsw.FullError as error:
        raise StoreFull(f"no space left for {path}; the copy was given up") from error
    except apsw.Error as error:
        raise mapped(error, store) from error
    except OSError as error:
        raise StoreUnavailable(f"can't write the copy: {error}") from error


def _backup(connection: apsw.Connection, path: Path) -> dict[str, Any]:
    if os.path.lexists(path):
        raise _exists(path)
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder {path.parent} does not exist; make it first")
    part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    _remove(part)
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    os.close(os.open(part, flags, 0o600))
    try:
        jobs, live = _copy(connection, part)
        descriptor = os.open(part, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _name(part, path)
        sync_folder(str(path.parent.absolute()))
    finally:
        _remove(part)
    return {"path": str(path), "bytes": path.stat().st_size, "jobs": jobs, "live": live}


def _copy(connection: apsw.Connection, part: Path) -> tuple[int, int]:
    copy = apsw.Connection(str(part))
    try:
        with copy.backup("main", connection, "main") as running:
            # In one step it reads one snapshot.
            while not running.done:
                running.step()
        copy.pragma("journal_mode", "delete")
        faults = [fault for (fault,) in copy.execute("PRAGMA integrity_check(3)")]
        if faults != ["ok"]:
            told = " ".join("; ".join(faults).split())
            raise StoreDamaged(f"the copy of the store is damaged and was not kept: {told:.300}")
        jobs, live = copy.execute(_COUNT).get
    finally:
        copy.close()
    return jobs, live


def _name(part: Path, path: Path) -> None:
    """Give the copy its name, which somebody may have taken meanwhile."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # no hard links on this disk
        if os.path.lexists(path):
            raise _exists(path) from None
        os.rename(part, path)


def _exists(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} exists already; name a new file")


def _remove(part: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)
