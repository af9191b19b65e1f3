"""The place of a SQLite store: file system, device, room, rights, and who else holds the file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw

from outlast.clock import SystemClock
from outlast.doctor.report import Finding, Severity
from outlast.errors import DurabilityError
from outlast.store import Durability
from outlast.stores.sqlite import files

__all__ = ["disk_findings"]

OK, NOTE, WARNING, ERROR = Severity
_TOO_FAST = 30e-6
"""Seconds: a disk that confirms a write faster than that has hardly written it."""


def disk_findings(path: str, required: Durability, *, quick: bool) -> list[Finding]:
    """SQ4 to SQ7, SQ9, SQ10 and SQ13, judged by what is required."""
    findings = [_file_system(path, required), *_mount_options(path), _device(path), _room(path)]
    findings += _rights(path)
    findings += _holders(path)
    if not quick:
        findings += [_sync_time(path), _probe(path)]
    return findings


def _file_system(path: str, required: Durability) -> Finding:
    kind = files.file_system(os.path.dirname(path)) or "unknown"
    read = f"{os.path.dirname(path)} is on {kind}"
    try:
        best, why = files.path_durability(path)
    except DurabilityError as error:
        return Finding(
            id="SQ4",
            severity=ERROR,
            read=read,
            means=str(error),
            remedy="move the store to a local disk",
            durability=Durability.MEMORY,
        )
    if not why:
        return Finding(id="SQ4", severity=OK, read=read, durability=best)
    gone = best < Durability.POWER
    return Finding(
        id="SQ4",
        severity=ERROR if best < required else NOTE if gone else WARNING,
        read=read,
        means=why,
        remedy="move the store to a disk" if gone else "mount a volume for it",
        durability=best,
    )


def _mount_options(path: str) -> list[Finding]:
    try:
        text = Path(files.MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    place, best, options = os.path.dirname(path), -1, ""
    for line in text.splitlines():
        fields = line.split(" ")
        point = fields[4]
        inside = point == "/" or place == point or place.startswith(point + "/")
        if inside and "-" in fields and len(point) >= best:
            best = len(point)
            options = ",".join([fields[5], fields[-1]])
    bad = [o for o in ("nobarrier", "barrier=0", "data=writeback") if o in options.split(",")]
    if not bad:
        return []
    return [
        Finding(
            id="SQ4",
            severity=WARNING,
            read=f"mounted with {', '.join(bad)}",
            means="the file system may reorder or keep back what SQLite asked it to write",
            remedy="mount it without that option",
            durability=Durability.PROCESS,
        )
    ]


def _device(path: str) -> Finding:
    """SQ5: whether the disk has a cache of its own, which must be trusted to flush."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}" if hasattr(os, "major") else ""
    for folder in (f"/sys/dev/block/{name}/queue", f"/sys/dev/block/{name}/../queue"):
        try:
            cache = Path(folder, "write_cache").read_text().strip()
        except OSError:
            continue
        if cache == "write through":
            return Finding(id="SQ5", severity=OK, read=f"write cache of the device: {cache}")
        return Finding(
            id="SQ5",
            severity=NOTE,
            read=f"write cache of the device: {cache}",
            means="a power cut is survived if the device truly flushes when it is told to",
            remedy="trust a device that says so, or one with a battery; outlast can't look inside",
        )
    return Finding(
        id="SQ5",
        severity=NOTE,
        read="the system doesn't say what kind of cache the device has",
        means="a power cut is survived if the device truly flushes when it is told to",
    )


def _sync_time(path: str) -> Finding:
    """SQ6: fifty small writes, each made durable."""
    clock, taken = SystemClock(), []
    sync = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=files.companion(path)) as file:
        for _ in range(50):
            file.write(bytes(4096))
            file.flush()
            began = clock.monotonic()
            sync(file.fileno())
            taken.append(clock.monotonic() - began)
    median = sorted(taken)[25]
    read = f"fdatasync takes {median * 1e6:.0f} us (median of 50)"
    if median >= _TOO_FAST:
        return Finding(id="SQ6", severity=OK, read=read)
    return Finding(
        id="SQ6",
        severity=WARNING,
        read=read,
        means="hardly any disk is that fast: something may confirm what it hasn't written",
        remedy="find out what is below this folder: a RAM disk, a virtual disk with unsafe caching",
    )


_READER = """
import apsw, sys
connection = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
connection.set_busy_timeout(5000)
print(connection.execute("SELECT x FROM t").get)
"""


def _probe(path: str) -> Finding:
    """SQ7: a scratch database in WAL, written here and read by another process."""
    with tempfile.TemporaryDirectory(dir=files.companion(path)) as folder:
        scratch = os.path.join(folder, "probe.db")
        connection = apsw.Connection(scratch)
        connection.pragma("journal_mode", "wal")
        connection.execute("CREATE TABLE t (x); INSERT INTO t VALUES (7)")
        answer = subprocess.run(
            [sys.executable, "-c", _READER, scratch], capture_output=True, text=True, check=False
        )
        connection.close()
    if answer.stdout.strip() == "7":
        return Finding(
            id="SQ7", severity=OK, read="another process reads what was written here in WAL"
        )
    return Finding(
        id="SQ7",
        severity=ERROR,
        read=f"another process can't read what was written here: {answer.stderr.strip()[-200:]}",
        means="processes on this file would not see one another's jobs",
        remedy="move the store to a file system that shares memory maps between processes",
        durability=Durability.MEMORY,
    )


def _room(path: str) -> Finding:
    """SQ9: free space and inodes, and the ballast that lets work be settled on a full disk."""
    if not hasattr(os, "statvfs"):
        return Finding(id="SQ9", severity=NOTE, read="the system doesn't say how much is free")
    found = os.statvfs(os.path.dirname(path))
    free, inodes = found.f_bavail * found.f_frsize, found.f_favail
    ballast = files.companion(path) / "ballast"
    kept = ballast.stat().st_size if ballast.exists() else 0
    read = f"{free / 2**20:,.0f} MiB and {inodes:,} inodes free, ballast {kept / 2**20:.0f} MiB"
    # Some file systems count no inodes.
    short = free < 64 << 20 or (found.f_files and inodes < 100)
    if not short and kept:
        return Finding(id="SQ9", severity=OK, read=read)
    return Finding(
        id="SQ9",
        severity=WARNING,
        read=read,
        means=(
            "soon new jobs are refused"
            if kept
            else "the disk was full: new jobs are refused until there is room for the ballast again"
        ),
        remedy="free some space",
    )


def _rights(path: str) -> list[Finding]:
    """SQ10: mode, owner and links of every file of the store."""
    findings = []
    names = [Path(f"{path}{end}") for end in ("", "-wal", "-shm")]
    names += [files.companion(path), *files.companion(path).glob("*")]
    owner = os.stat(path).st_uid
    for name in names:
        try:
            found = os.lstat(name)
        except FileNotFoundError:
            continue
        faults = []
        if stat.S_ISLNK(found.st_mode):
            faults.append("is a symbolic link")
        elif found.st_mode & 0o077 and sys.platform != "win32":
            faults.append(f"has mode {stat.S_IMODE(found.st_mode):o}")
        if found.st_uid != owner:
            faults.append(f"belongs to uid {found.st_uid}, not to {owner}")
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            faults.append(f"has {found.st_nlink} names")
        if faults:
            findings.append(
                Finding(
                    id="SQ10",
                    severity=WARNING,
                    read=f"{name} {', '.join(faults)}",
                    means="others can read or replace what only the owner should touch",
                    remedy="chmod go-rwx, chown to the owner of the store, remove other links",
                )
            )
    return findings or [
        Finding(id="SQ10", severity=OK, read="only their owner can touch the store's files")
    ]


def _holders(path: str) -> list[Finding]:
    """SQ13: programs that hold the file open and are not outlast, as far as we may look."""
    inode = os.stat(path)
    turn = files.companion(path) / "turn"
    mark = os.stat(turn).st_ino if turn.exists() else -1
    foreign = []
    for process in Path("/proc").glob("[0-9]*"):
        held = set()
        try:
            for name in os.listdir(process / "fd"):
                found = os.stat(process / "fd" / name)
                if found.st_dev == inode.st_dev:
                    held.add(found.st_ino)
        except OSError:
            continue  # gone meanwhile, or another user's
        if inode.st_ino in held and mark not in held:
            try:
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            foreign.append(f"{name} ({process.name})")
    if not foreign:
        return [Finding(id="SQ13", severity=OK, read="no other program holds the file open")]
    return [
        Finding(
            id="SQ13",
            severity=WARNING,
            read=f"held open by {', '.join(foreign[:5])}",
            means="a long read keeps the log growing; a write past outlast can break its counts",
            remedy="end them, or let them work on a copy made by outlast backup",
        )
    ]
