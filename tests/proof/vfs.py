"""A layer between SQLite and its files: sees every operation, and may refuse any of them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from unittest import mock

import apsw
from tests.proof.journal import Memo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Op", "OpKind", "Tape", "Watcher", "io_error", "watched"]

OpKind = Literal[
    "create", "found", "write", "truncate", "sync", "badsync", "delete", "syncdir", "read"
]


class Op(NamedTuple):
    """One operation on one file. ``offset`` is the new size for ``truncate``.

    ``found``: SQLite opened a file that somebody else had made. ``badsync``: a sync that failed;
    as on Linux, what was written before it then counts as clean and never reaches the platter.
    """

    kind: OpKind
    name: str
    offset: int = 0
    data: bytes = b""


class Watcher(Protocol):
    """What looks on. ``before`` may raise to make the operation fail, ``after`` only takes note."""

    def before(self, op: Op) -> None: ...

    def after(self, op: Op) -> None: ...


class _File(apsw.VFSFile):
    def __init__(self, watcher: Watcher, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._watcher: Watcher | None = watcher if path else None
        self._name = path or ""
        self._sync_folder = False
        fresh = bool(path) and bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not Path(path).exists()
        if fresh:
            watcher.before(Op("create", path))
        super().__init__("", name, flags)
        if path:
            watcher.after(Op("create" if fresh else "found", path))
        # Whoever may create a journal syncs the folder together with its own first sync of it.
        journals = (
            apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
        )
        creates = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        self._sync_folder = bool(path) and creates and bool(flags[0] & journals)

    def xRead(self, amount: int, offset: int) -> bytes:
        if self._watcher is not None:
            self._watcher.before(Op("read", self._name, offset))
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        if self._watcher is None:
            super().xWrite(data, offset)
            return
        op = Op("write", self._name, offset, bytes(data))
        try:
            self._watcher.before(op)
        except ShortWrite as short:
            super().xWrite(op.data[: len(op.data) // 2], offset)
            raise short.error from short
        super().xWrite(data, offset)
        self._watcher.after(op)

    def xTruncate(self, size: int) -> None:
        op = Op("truncate", self._name, size)
        if self._watcher is not None:
            self._watcher.before(op)
        super().xTruncate(size)
        if self._watcher is not None:
            self._watcher.after(op)

    def xSync(self, flags: int) -> None:
        op = Op("sync", self._name)
        if self._watcher is not None:
            self._watcher.before(op)
        super().xSync(flags)
        if self._watcher is not None:
            self._watcher.after(op)
            if self._sync_folder:
                self._watcher.after(Op("syncdir", os.path.dirname(self._name)))
                self._sync_folder = False


class _VFS(apsw.VFS):
    def __init__(self, name: str, watcher: Watcher) -> None:
        self._watcher = watcher
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(self._watcher, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        op = Op("delete", filename)
        self._watcher.before(op)
        super().xDelete(filename, syncdir)
        self._watcher.after(op)
        if syncdir:
            self._watcher.after(Op("syncdir", os.path.dirname(filename)))


class ShortWrite(Exception):
    """Raised by a watcher: half of the data gets written, then ``error`` comes."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def io_error(kind: OpKind, *, full: bool = False) -> apsw.Error:
    """The error that SQLite's own layer would report for such a failure."""
    codes = {
        "read": apsw.SQLITE_IOERR_READ,
        "write": apsw.SQLITE_IOERR_WRITE,
        "truncate": apsw.SQLITE_IOERR_TRUNCATE,
        "sync": apsw.SQLITE_IOERR_FSYNC,
        "badsync": apsw.SQLITE_IOERR_FSYNC,
        "delete": apsw.SQLITE_IOERR_DELETE,
        "create": apsw.SQLITE_CANTOPEN,
        "found": apsw.SQLITE_CANTOPEN,
        "syncdir": apsw.SQLITE_IOERR_DIR_FSYNC,
    }
    error: Any
    if full:
        error, code = apsw.FullError("injected: no space left"), apsw.SQLITE_FULL
    else:
        code = codes[kind]
        made = apsw.CantOpenError if kind == "create" else apsw.IOError
        error = made(f"injected: {kind} failed")
    error.result, error.extendedresult = code & 0xFF, code
    checked: apsw.Error = error
    return checked


class Tape(Memo):
    """Records what happened to the files, and beside it what the program was told meanwhile.

    The moment of an event is the number of operations that had been done by then.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.ops: list[Op] = []
        self._known = set(known)
        """Names of files that are there already, or were created on the tape."""
        self._syncs_left = 0
        super().__init__(lambda: float(len(self.ops)))

    def before(self, op: Op) -> None:
        if op.kind == "sync" and self._syncs_left > 0:
            self._syncs_left -= 1
            if self._syncs_left == 0:
                self.ops.append(op._replace(kind="badsync"))
                raise io_error("sync")

    def after(self, op: Op) -> None:
        if op.kind == "found":
            self._find(op.name)
        elif op.kind != "read":
            if op.kind == "create":
                self._known.add(op.name)
            self.ops.append(op)

    def fail_sync(self, nth: int) -> None:
        """Let the n-th sync of a file from here on fail, once."""
        self._syncs_left = nth

    def _find(self, name: str) -> None:
        """The program made this file itself; its name lasts if it has synced the folder since."""
        if name not in self._known:
            self._known.add(name)
            folder = Op("syncdir", os.path.dirname(name))
            synced = folder in self.ops
            self.ops.append(Op("create", name))
            if synced:
                self.ops.append(folder)


@contextlib.contextmanager
def watched(name: str, watcher: Watcher) -> Iterator[str]:
    """A VFS of that name for the time of the block; yields the name.

    Syncs that a program does itself by ``os.fsync`` and ``os.fdatasync`` are seen as well.
    """
    vfs = _VFS(name, watcher)
    real = {"fsync": os.fsync, "fdatasync": os.fdatasync}

    def spying(which: str) -> Any:
        def sync(fd: Any) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            path = os.readlink(f"/proc/self/fd/{number}")
            folder = stat.S_ISDIR(os.fstat(number).st_mode)
            op = Op("syncdir" if folder else "sync", path)
            try:
                watcher.before(op)
            except apsw.Error as error:
                raise OSError(errno.EIO, str(error), path) from error
            real[which](number)
            watcher.after(op)

        return sync

    try:
        with (
            mock.patch.object(os, "fsync", spying("fsync")),
            mock.patch.object(os, "fdatasync", spying("fdatasync")),
        ):
            yield name
    finally:
        vfs.unregister()
