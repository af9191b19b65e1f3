"""The examination of a SQLite store: checks SQ1 to SQ14, and what waits in it."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import apsw

from outlast.doctor.disk import disk_findings
from outlast.doctor.report import Finding, Report, Severity
from outlast.doctor.waiting import waiting
from outlast.errors import DurabilityError, OutlastError, StoreDamaged, StoreError
from outlast.store import Durability
from outlast.stores.sqlite import SqliteStore, files, schema
from outlast.stores.sqlite.faults import mapped
from outlast.stores.sqlite.verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.store import WorkerInfo
    from outlast.stores.urls import Address

__all__ = ["examine"]

OK, NOTE, WARNING, ERROR = Severity
_WAL_LIMIT = 256 << 20
_RESTORE = (
    "stop what uses it, keep a copy of it with its -wal, and restore a backup; without one, look"
    " whether it is the right file"
)


async def examine(
    address: Address, *, required: Durability | None, deep: bool, quick: bool
) -> Report:
    """See :func:`outlast.doctor.examine`."""
    promised = Durability.POWER if address.durability is None else address.durability
    path = files.real(address.path)
    wanted = promised if required is None else required
    try:
        store = SqliteStore(path, durability=Durability.MEMORY, create=False)
        await store.open()
    except OutlastError as error:
        return _unreached(path, wanted, error)
    try:
        workers = await store.workers()
        findings = await asyncio.to_thread(
            _look, path, promised, wanted, workers, deep=deep, quick=quick
        )
        findings += await waiting(store)
    except StoreError as error:
        return _unreached(path, wanted, error)
    except apsw.Error as error:
        return _unreached(path, wanted, mapped(error, path))
    finally:
        await store.close()
    return Report(url=f"sqlite:///{path}", required=wanted, findings=tuple(findings))


def _unreached(path: str, required: Durability, error: OutlastError) -> Report:
    # What guarantees too little, or is broken, was reached; it is only not good enough.
    reached = isinstance(error, DurabilityError | StoreDamaged)
    finding = Finding(
        id="SQ0",
        severity=ERROR,
        read=str(error).removesuffix("; run outlast doctor on it"),
        means="the store can't be used as it is",
        remedy=_RESTORE if isinstance(error, StoreDamaged) else "mend that first, and look again",
        durability=Durability.MEMORY if reached else None,
    )
    return Report(url=f"sqlite:///{path}", required=required, findings=(finding,), reached=reached)


def _look(
    path: str,
    promised: Durability,
    required: Durability,
    workers: Sequence[WorkerInfo],
    *,
    deep: bool,
    quick: bool,
) -> list[Finding]:
    """Everything that blocks, in a thread."""
    connection = schema.connect(path, promised)
    connection.set_busy_timeout(5000)
    try:
        findings = [
            _synchronous(connection),
            _journal(connection),
            *_libraries(workers),
            *disk_findings(path, required, quick=quick),
            _log(connection, path),
            _options(connection),
            _kept_copy(connection, path),
        ]
        if not quick:
            findings.append(_contents(connection, path, deep=deep))
    finally:
        connection.close()
    return findings


def _synchronous(connection: apsw.Connection) -> Finding:
    level = connection.pragma("synchronous")
    name = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}.get(level, str(level))
    if level in (2, 3):
        return Finding(
            id="SQ1",
            severity=OK,
            read=f"synchronous={name} on the connection that writes",
            means="each commit is on the disk before it is answered",
            durability=Durability.POWER,
        )
    return Finding(
        id="SQ1",
        severity=WARNING,
        read=f"synchronous={name} on the connection that writes",
        means=(
            "the last commits can be gone after a power cut"
            if level == 1
            else "after a power cut commits can be gone and the file damaged"
        ),
        remedy="take ?durability=process or ?durability=memory out of the URL",
        durability=Durability.PROCESS,
    )


def _journal(connection: apsw.Connection) -> Finding:
    mode = connection.pragma("journal_mode")
    if mode == "wal":
        return Finding(id="SQ2", severity=OK, read="journal_mode=wal", durability=Durability.POWER)
    return Finding(
        id="SQ2",
        severity=ERROR,
        read=f"journal_mode={mode}",
        means="a crash in the middle of a commit can damage the file",
        remedy="find out which program changed it; outlast uses WAL",
        durability=Durability.MEMORY,
    )


def _libraries(workers: Sequence[WorkerInfo]) -> list[Finding]:
    """Our own SQLite, and that of every worker that is known."""
    mine = apsw.sqlite_lib_version()
    versions = {mine: "this process"}
    for info in workers:
        words = info.library.split()
        if len(words) > 1 and words[0] == "SQLite":
            versions.setdefault(words[1], f"worker {info.id} on {info.host}")
    findings = []
    for version, who in sorted(versions.items()):
        flaw = schema.library_flaw(version)
        findings.append(
            Finding(
                id="SQ3",
                severity=ERROR if flaw else OK,
                read=f"SQLite {version} in {who}",
                means=flaw or "",
                remedy="upgrade apsw there" if flaw else "",
                durability=Durability.MEMORY if flaw else None,
            )
        )
    if len(versions) > 1:
        findings.append(
            Finding(
                id="SQ3",
                severity=NOTE,
                read=f"{len(versions)} versions of SQLite use this file: {', '.join(versions)}",
                means="each must be free of known faults, since all of them write",
                remedy="run the same version everywhere",
            )
        )
    return findings


def _log(connection: apsw.Connection, path: str) -> Finding:
    try:
        size = os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        size = 0
    try:
        pages, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    except apsw.BusyError:
        pages, copied = -1, -1
    read = f"the log is {size / 2**20:.1f} MiB; {copied} of its {pages} pages are in the database"
    if size <= _WAL_LIMIT:
        return Finding(id="SQ8", severity=OK, read=read)
    return Finding(
        id="SQ8",
        severity=WARNING,
        read=read,
        means="a reader that never ends its transaction keeps the log from starting anew",
        remedy="end programs that hold the file open for reading (SQ13 lists them)",
    )


def _options(connection: apsw.Connection) -> Finding:
    options = [row[0] for row in connection.execute("PRAGMA compile_options")]
    safe = next((o for o in options if o.startswith("THREADSAFE=")), "THREADSAFE=?")
    mapped = connection.pragma("mmap_size") or 0
    full = connection.pragma("fullfsync")
    bad = safe == "THREADSAFE=0" or mapped
    return Finding(
        id="SQ12",
        severity=WARNING if bad else OK,
        read=f"{safe}, mmap_size={mapped}, fullfsync={full}",
        means="stray writes of the program could reach the file" if mapped else "",
        remedy="use the SQLite that apsw brings" if bad else "",
    )


def _kept_copy(connection: apsw.Connection, path: str) -> Finding:
    """SQ14: one disk is one disk; and some folders are copied behind our back."""
    synced = ("dropbox", "onedrive", "icloud", "google drive", "nextcloud", "syncthing")
    folder = next((name for name in synced if name in path.lower()), None)
    if folder:
        return Finding(
            id="SQ14",
            severity=WARNING,
            read=f"the path looks like a folder that {folder} copies",
            means="a copy made between two writes of the file and its log is damaged",
            remedy="move the store out of that folder, and copy it with outlast backup",
        )
    when = _date(connection.execute("SELECT value FROM meta WHERE name = 'backup'").get)
    return Finding(
        id="SQ14",
        severity=NOTE,
        read=f"last backup: {when or 'none that is known'}",
        means="one file on one disk does not survive the loss of that disk",
        remedy="outlast backup FILE, on another disk, as often as you can afford to lose",
    )


def _date(seconds: str | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(float(seconds), tz=UTC).isoformat(timespec="minutes")


def _contents(connection: apsw.Connection, path: str, *, deep: bool) -> Finding:
    faults = verify(connection) if deep else _quick_check(connection)
    how = "every row" if deep else "quick_check"
    if not faults:
        return Finding(id="SQ11", severity=OK, read=f"{how}: nothing is damaged")
    return Finding(
        id="SQ11",
        severity=ERROR,
        read=f"{how}: {'; '.join(faults[:5])}" + (" ..." if len(faults) > 5 else ""),
        means="what is stored is not what was written",
        remedy="copy the file away with its log, restore a backup, and check the disk",
    )


def _quick_check(connection: apsw.Connection) -> list[str]:
    found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(5)")]
    return [] if found == ["ok"] else found
