"""Life signs of worker processes: an OS lock and the marks of what each has started.

A worker process holds one small file, ``<worker id>.life``, in a folder beside the store. Its lock
says that the process lives: the system lets go of it at any death, and anybody may look. Its
contents say what was running: they are written through a shared memory map, so the kernel has
them however the process dies, and only a power cut loses them. Nothing here is ever synced, because
after a power cut the boot id differs and nobody is to blame.

The file, little-endian:

    0    8   magic, b"OUTLIFE1"
    8    8   process id, for people
    16   40  boot id of the machine, empty where there is none to be had
    56   4   number of slots
    60   1   flags: 1 the slots overflowed, 2 the cause of death is written, 4 nobody is to blame
    64   4   signal, or -1
    68   4   exit code, or -1
    72   128 message, for people
    200  128 file name of the supervisor's lock, in the same folder; empty without a supervisor
    512  136 a slot: job id (its length first), then one byte of state

A slot is free (0), running beside others (1), running alone (2), or returned and waiting to be
settled (3). The state is written last when a slot is taken, and alone when it changes, so that a
kill in between leaves the slot as it was. A file is locked before its first byte is written: an
empty one whose lock is free is what a killed start left behind, and holds nothing.

While a supervisor lives, a death is told only once it has written how the process died: a matter of
milliseconds. This module imports next to nothing, because the supervisor is to stay small.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
import sys
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.job import Death

__all__ = ["BALLAST", "Lifeline", "SupervisorLock", "adopt", "dead", "forget", "write_cause"]

_HEADER = struct.Struct("<8sQ40sIB3xii128p128p")
_HEADER_SIZE = 512
_CAUSE = struct.Struct("<ii128p")
_FLAGS_AT, _CAUSE_AT, _SUPERVISOR_AT = 60, 64, 200
_SLOT = struct.Struct("<129pB6x")
_STATE_AT = 129
_MAGIC = b"OUTLIFE1"
_FREE, _BESIDE, _ALONE, _RETURNED = range(4)
_OVERFLOWED, _CAUSE_KNOWN, _NO_BLAME = 1, 2, 4
_GOOD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
BALLAST = "ballast"
"""A file in the same folder that is given up when a full disk has no room for a life sign."""
TRIES = 300
"""How often, a millisecond apart, to try for a new file before its name counts as taken."""
ID_BYTES = 128
"""The longest job id that fits a mark; a longer one makes the marks say less, never wrong."""


class Lifeline:
    """The life sign of this process under one worker id, which must never be used twice.

    The marks are made by one thread at a time; each takes well under a microsecond.
    """

    __slots__ = ("__weakref__", "_fd", "_free", "_map", "_slots", "_taken", "path", "worker")

    def __init__(self, folder: Path | str, worker_id: str, slots: int = 2048) -> None:
        if not _GOOD_NAME.fullmatch(worker_id):
            from outlast.errors import ConfigurationError

            raise ConfigurationError(
                f"worker id {worker_id!r}: use 1 to 100 letters, digits and . _ @ -"
            )
        self.worker = worker_id
        self.path = os.path.join(folder, worker_id + ".life")
        self._slots = slots
        self._fd = -1
        self._map: mmap.mmap | None = None
        self._taken: dict[str, int] = {}
        last = _HEADER_SIZE + _SLOT.size * (slots - 1)
        self._free = list(range(last, _HEADER_SIZE - 1, -_SLOT.size))

    def hold(self) -> None:
        """Create and lock the file: from here on this worker counts as alive.

        Raises ``ConfigurationError`` if the id is in use or was, ``StoreFull`` if there is no room,
        and ``StoreUnavailable`` if it can't be made for another reason.
        """
        try:
            self._make()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise self._refused(error) from error
            self._make_in_place_of_the_ballast()
        if hasattr(os, "register_at_fork"):
            # A forked child shares the lock, and would keep us alive beyond our death.
            drop = weakref.WeakMethod(self._drop)
            os.register_at_fork(after_in_child=lambda: (drop() or _nothing)())

    def _make(self) -> None:
        fd = _create_locked(self.path)
        if os.fstat(fd).st_size:
            os.close(fd)
            raise _taken_id(self.path)
        try:
            os.write(fd, _header(self._slots))
            size = _HEADER_SIZE + self._slots * _SLOT.size
            if hasattr(os, "posix_fallocate"):
                # Written through the map, a hole that the disk has no room for would kill us.
                os.posix_fallocate(fd, 0, size)
            os.ftruncate(fd, size)
            self._map = mmap.mmap(fd, 0)
        except BaseException:
            _close_and_remove(fd, self.path)
            raise
        self._fd = fd

    def _make_in_place_of_the_ballast(self) -> None:
        """A worker that can't work would leave what was accepted for the disk to be freed."""
        from outlast.errors import StoreFull

        folder = os.path.dirname(self.path)
        try:
            os.unlink(os.path.join(folder, BALLAST))
            self._make()
        except OSError as error:
            if error.errno not in (*_NO_SPACE, errno.ENOENT):
                raise self._refused(error) from error
            raise StoreFull(
                f"the disk has no room left for a worker's life sign in {folder}; free a few MiB"
            ) from error

    def _refused(self, error: OSError) -> Exception:
        from outlast.errors import StoreUnavailable

        return StoreUnavailable(
            f"can't make a worker's life sign {self.path}: {error.strerror}; outlast needs a folder"
            " in which it can write"
        )

    def mark_started(self, id: str, alone: bool) -> None:
        """Say that a job's function is about to be entered."""
        held, key = self._map, id.encode()
        if held is None:
            return
        if not self._free or len(key) > ID_BYTES:
            held[_FLAGS_AT] |= _OVERFLOWED
            return
        at = self._taken.get(id)
        if at is None:
            at = self._taken[id] = self._free.pop()
        _SLOT.pack_into(held, at, key, _ALONE if alone else _BESIDE)

    def mark_ended(self, id: str) -> None:
        """Say that the function has returned, and that its verdict is still to be stored."""
        at = self._taken.get(id)
        if at is not None and self._map is not None:
            self._map[at + _STATE_AT] = _RETURNED

    def mark_settled(self, id: str) -> None:
        """Forget a job: its verdict is stored, or was refused."""
        at = self._taken.pop(id, None)
        if at is not None and self._map is not None:
            self._map[at + _STATE_AT] = _FREE
            self._free.append(at)

    def blame(self, ids: frozenset[str], message: str) -> None:
        """Before a process ends itself: only these jobs are to blame, or none of them."""
        if self._map is None:
            return
        for id, at in list(self._taken.items()):
            if self._map[at + _STATE_AT] in (_BESIDE, _ALONE):
                self._map[at + _STATE_AT] = (
                    _RETURNED if id not in ids else _ALONE if len(ids) == 1 else _BESIDE
                )
        if not ids:
            self._map[_FLAGS_AT] |= _NO_BLAME
        _write_message(self._map, message)

    def accuse(self, message: str) -> None:
        """Before a broken process ends itself: any job in it may have done that.

        One whose function has returned as well, since what it broke shows only later.
        """
        if self._map is not None:
            for at in list(self._taken.values()):
                if self._map[at + _STATE_AT] == _RETURNED:
                    self._map[at + _STATE_AT] = _BESIDE
            _write_message(self._map, message)

    def release(self) -> None:
        """Delete the file and let go of the lock: the worker ended in order and holds nothing."""
        if self._map is not None:
            self._map.close()
            self._map = None
            _close_and_remove(self._fd, self.path)

    def abandon(self) -> None:
        """Let go of the lock and leave the marks: others take over what is still claimed."""
        self._drop()

    def _drop(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._fd)
            self._fd = -1


class SupervisorLock:
    """Tells that the supervisor of some workers lives, and will say how they died."""

    __slots__ = ("_fd", "folder", "name")

    def __init__(self, folder: str, token: str) -> None:
        self.folder = folder
        self.name = f"{token}.super"
        self._fd = _create_locked(os.path.join(folder, self.name))

    def release(self) -> None:
        """Let go, and delete the file."""
        _close_and_remove(self._fd, os.path.join(self.folder, self.name))


def adopt(path: str, lock: SupervisorLock) -> None:
    """Note in a worker's file who will say how it died.

    Does nothing if the file is gone: the worker died meanwhile, and was recovered by another.
    """
    with suppress(FileNotFoundError):
        _write_at(path, _SUPERVISOR_AT, struct.pack("128p", lock.name.encode()))


def write_cause(
    path: str, *, signal: int | None, exit_code: int | None, message: str = "", blame: bool = True
) -> None:
    """Note in a dead worker's file how it died. A message that is there already stays.

    Does nothing if the file is gone: the worker ended in order, or was recovered already.
    """
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return
    with open(fd, "r+b", buffering=0) as file:
        data = bytearray(file.read(_HEADER_SIZE))
        if len(data) < _HEADER_SIZE:
            return
        old = _CAUSE.unpack_from(data, _CAUSE_AT)
        codes = (-1 if signal is None else signal, -1 if exit_code is None else exit_code)
        text = old[2] or message.encode()[:127]
        file.seek(_CAUSE_AT)
        file.write(_CAUSE.pack(*codes, text))
        file.seek(_FLAGS_AT)
        file.write(bytes([data[_FLAGS_AT] | _CAUSE_KNOWN | (0 if blame else _NO_BLAME)]))


def dead(folder: Path | str) -> list[tuple[str, Death]]:
    """The workers of this folder that are dead, with what their marks tell, oldest id first.

    They stay listed until :func:`forget`. Left-overs of killed starts are cleaned up on the way.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        path = os.path.join(folder, name)
        if name.endswith(".life"):
            marks = _read_if_free(path)
            death = _death(marks, folder) if marks else None
            if death is not None:
                found.append((name.removesuffix(".life"), death))
        elif name.endswith(".super"):
            fd = _open_free(path)
            if fd is not None:
                _close_and_remove(fd, path)
    return found


def forget(folder: Path | str, worker_id: str) -> None:
    """Delete what a dead worker left behind, once its claims are recovered."""
    try:
        os.unlink(os.path.join(folder, worker_id + ".life"))
    except FileNotFoundError:
        pass  # another process did it


def _death(data: bytes, folder: Path | str) -> Death | None:
    """What the marks of a dead worker say, or None if its supervisor is about to say more."""
    from outlast.job import Death

    if len(data) < _HEADER_SIZE or not data.startswith(_MAGIC):
        return Death(blamed=frozenset(), message="the machine stopped; nothing is known")
    header = _Header(*_HEADER.unpack_from(data))
    states = _states(data, header.slots)
    started = None if header.flags & _OVERFLOWED else frozenset(states)
    boot = header.boot.rstrip(b"\0")
    if boot and boot != _boot_id():
        return Death(started=started, blamed=frozenset(), message="the machine restarted")
    known = header.flags & _CAUSE_KNOWN
    if not known and header.supervisor and _is_held(os.path.join(folder, header.supervisor)):
        return None
    running = {id: state for id, state in states.items() if state != _RETURNED}
    blamed = frozenset() if header.flags & _NO_BLAME else frozenset(running)
    return Death(
        started=started,
        blamed=None if started is None and blamed else blamed,
        alone=started is not None and len(running) == 1,
        signal=header.signal if known and header.signal >= 0 else None,
        exit_code=header.exit_code if known and header.exit_code >= 0 else None,
        message=header.message.decode(errors="replace"),
    )


class _Header(NamedTuple):
    magic: bytes
    pid: int
    boot: bytes
    slots: int
    flags: int
    signal: int
    exit_code: int
    message: bytes
    supervisor_name: bytes

    @property
    def supervisor(self) -> str:
        return self.supervisor_name.decode(errors="replace")


def _header(slots: int) -> bytes:
    packed = _HEADER.pack(_MAGIC, os.getpid(), _boot_id(), slots, 0, -1, -1, b"", b"")
    return packed.ljust(_HEADER_SIZE, b"\0")


def _states(data: bytes, slots: int) -> dict[str, int]:
    """State by job id, without free slots; a file cut short has fewer."""
    states = {}
    end = min(len(data), _HEADER_SIZE + slots * _SLOT.size)
    for at in range(_HEADER_SIZE, end - _SLOT.size + 1, _SLOT.size):
        if data[at + _STATE_AT] != _FREE:
            key, state = _SLOT.unpack_from(data, at)
            states[key.decode(errors="replace")] = state
    return states


def _write_message(held: mmap.mmap, message: str) -> None:
    signal, exit_code, old = _CAUSE.unpack_from(held, _CAUSE_AT)
    _CAUSE.pack_into(held, _CAUSE_AT, signal, exit_code, old or message.encode()[:127])


def _write_at(path: str, at: int, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        file.write(data)


def _create_locked(path: str) -> int:
    """A file of ours, locked: its descriptor. Whoever tidies up may hold or remove it meanwhile."""
    moment = threading.Event()
    for _ in range(TRIES):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        if _try_lock(fd) and _is_at(fd, path):
            return fd
        os.close(fd)
        moment.wait(0.001)
    raise _taken_id(path)


def _taken_id(path: str) -> Exception:
    from outlast.errors import ConfigurationError

    name = os.path.basename(path).removesuffix(".life")
    return ConfigurationError(f"worker id {name!r} is or was in use here; choose another")


def _is_at(fd: int, path: str) -> bool:
    """Whether this open file still has that name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _read_if_free(path: str) -> bytes | None:
    """The file's contents if nobody holds its lock, or None. Removes what a killed start left."""
    fd = _open_free(path)
    if fd is None:
        return None
    if os.fstat(fd).st_size == 0:
        _close_and_remove(fd, path)
        return None
    with open(fd, "rb") as file:
        return file.read()


def _close_and_remove(fd: int, path: str) -> None:
    """Delete a file whose lock we hold, while we hold it where the system lets us."""
    if sys.platform == "win32":
        os.close(fd)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # the folder was cleaned up; it was to go anyway
    except PermissionError:
        if sys.platform != "win32":
            raise  # there, it means that someone else has it open, and will see to it
    if sys.platform != "win32":
        os.close(fd)


def _is_held(path: str) -> bool:
    fd = _open_free(path)
    if fd is not None:
        os.close(fd)
    return fd is None and os.path.exists(path)


def _open_free(path: str) -> int | None:
    """A descriptor that holds the lock of a file nobody held, or None if held or gone."""
    try:
        fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return None
    if _try_lock(fd) and _is_at(fd, path):
        return fd
    os.close(fd)
    return None


if sys.platform == "win32":

    def _try_lock(fd: int) -> bool:
        import msvcrt

        # A byte far behind the contents: Windows lets nobody read what is locked.
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return True

else:

    def _try_lock(fd: int) -> bool:
        import fcntl

        try:
            # Of the open file, not of the process: closing another descriptor keeps it.
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _boot_id() -> bytes:
    """Differs after each start of the machine; empty where the system doesn't tell.

    There, a restart of the machine looks like the death of the worker.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(40).strip()
    except OSError:
        return b""


def _nothing() -> None:
    """Stands in for a lifeline that is gone."""
