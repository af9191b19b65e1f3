"""Forked processes: what a child inherits of open databases must not lose what it stores itself.

SQLite's locks on a file belong to one process, and a forked child believes that it holds those of
its parent. A database that it opens then is without locks that it relies on: when the parent
closes, it takes the child's log away, and with it what the child had acknowledged. So no thread of
ours is inside SQLite while the process forks, and the child takes for itself, before anything else,
the two locks that it is believed to hold: the one on the database and the one on the log's index.
Where that can't be done the file can't be opened in that child, and says so.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, ClassVar

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.stores.sqlite.files import Identity

__all__ = ["Forks", "Gate"]

PATIENCE = 10.0
"""Seconds that a fork waits for a commit that is on its way."""

# https://sqlite.org/src/file/src/os.h and os_unix.c: what each connection in WAL mode holds.
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510
_SHM_DMS = 128


class Gate:
    """A thread holds it while it is inside SQLite."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        Forks.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """For the thread that holds it, while it only waits."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def close(self) -> None:
        """The thread is over."""
        Forks.remove(self)

    def _shut(self) -> bool:
        return self.lock.acquire(timeout=PATIENCE)

    def _release(self) -> None:
        self.lock.release()


class Forks:
    """What the process has open, for the moment in which it forks."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _gates: ClassVar[set[Gate]] = set()
    _held: ClassVar[list[Gate]] = []
    _open: ClassVar[dict[str, list[Identity]]] = {}
    _busy: ClassVar[int] = 0
    _quiet: ClassVar[bool] = True
    _spoilt: ClassVar[dict[str, str]] = {}
    _pins: ClassVar[list[int]] = []
    """Descriptors that are never closed: closing any one of a file drops all locks on it."""
    _watching: ClassVar[bool] = False

    @classmethod
    def add(cls, gate: Gate) -> None:
        with cls._lock:
            cls._gates.add(gate)
            if not cls._watching and hasattr(os, "register_at_fork"):
                cls._watching = True
                os.register_at_fork(
                    before=cls._before, after_in_parent=cls._after, after_in_child=cls._in_child
                )

    @classmethod
    def remove(cls, gate: Gate) -> None:
        with cls._lock:
            cls._gates.discard(gate)

    @classmethod
    @contextlib.contextmanager
    def busy(cls, path: str) -> Iterator[None]:
        """Around the opening and the copying of a file, in whatever thread.

        Raises ``ConfigurationError`` if the file can't be opened in this process.
        """
        with cls._lock:
            if path in cls._spoilt:
                raise ConfigurationError(cls._spoilt[path])
            cls._busy += 1
        try:
            yield
        finally:
            with cls._lock:
                cls._busy -= 1

    @classmethod
    def opened(cls, identity: Identity) -> None:
        """A store is open on these files."""
        with cls._lock:
            cls._open.setdefault(identity.path, []).append(identity)

    @classmethod
    def closed(cls, identity: Identity) -> None:
        with cls._lock:
            left = cls._open.get(identity.path, [])
            if identity in left:
                left.remove(identity)
            if not left:
                cls._open.pop(identity.path, None)

    # -- the fork

    @classmethod
    def _before(cls) -> None:
        cls._lock.acquire()
        cls._quiet = not cls._busy
        for gate in cls._gates:
            if gate._shut():
                cls._held.append(gate)
            else:
                cls._quiet = False

    @classmethod
    def _after(cls) -> None:
        while cls._held:
            cls._held.pop()._release()
        cls._lock.release()

    @classmethod
    def _in_child(cls) -> None:
        cls._lock = threading.Lock()
        cls._gates, cls._held, cls._busy = set(), [], 0
        for path, (identity, *_) in cls._open.items():
            if not (cls._quiet and cls._pin(identity)):
                cls._spoilt[path] = (
                    f"{path} was in use when process {os.getppid()} forked this one, and its locks"
                    " can't be taken over: fork before opening it, or start processes by spawn"
                )

    @classmethod
    def _pin(cls, identity: Identity) -> bool:
        """Take the locks that SQLite believes to hold here; False if somebody was faster."""
        import fcntl

        share = fcntl.LOCK_SH | fcntl.LOCK_NB
        path = identity.path
        try:
            for name, size, first in (
                (path, _SHARED_SIZE, _SHARED_FIRST),
                (f"{path}-shm", 1, _SHM_DMS),
            ):
                descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                cls._pins.append(descriptor)
                fcntl.lockf(descriptor, share, size, first)
            identity.check()
        except Exception:
            return False
        return True
