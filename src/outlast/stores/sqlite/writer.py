"""The one thread that writes: it does whatever is waiting in one transaction, then answers.

Everything that was promised is synced before it is answered. A claim promises nothing, so a
transaction of claims alone is committed without waiting for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import apsw

from outlast.errors import (
    EnqueueUncertain,
    OutlastError,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.moves import Careful, Moves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from outlast.job import Job
    from outlast.store import Durability
    from outlast.stores.sqlite.files import Ballast, Identity

__all__ = ["Op", "Turn", "Writer", "mapped"]

T = TypeVar("T")

GROUP = 2000
"""Rows in one transaction, roughly: beyond that the others have waited long enough."""
LOCK_WAIT = 30.0
CHECKPOINT_PAGES = 2000
"""Pages of log after which it is copied into the database: 8 MiB."""
RESTART_PAGES = 16 * CHECKPOINT_PAGES
"""Pages of log after which we wait for readers so as to start the log anew."""
STRIKES = 3
"""I/O errors in a row after which the store is given up until it is opened again."""


def mapped(error: apsw.Error, path: str) -> StoreError:
    """The one place where SQLite's errors become ours."""
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
    return StoreUnavailable(f"{path}: {error}")


class Op(Generic[T]):
    """One call waiting for the writer. ``synced``: its answer promises that it is on disk.

    ``jobs`` are those of an ``add``; if it is ``simple`` nothing about it can be refused, so that
    it may be merged with others. ``reply`` is where the caller waits, if anybody does.
    """

    __slots__ = ("answer", "error", "jobs", "reply", "run", "simple", "size", "synced", "undo")

    def __init__(
        self,
        run: Callable[[Moves], T],
        synced: bool,
        size: int = 1,
        jobs: Sequence[Job] | None = None,
        simple: bool = False,
    ) -> None:
        self.run = run
        self.synced = synced
        self.size = size
        self.jobs = jobs
        self.simple = simple
        self.error: BaseException | None = None
        self.answer: T | None = None
        self.undo: Callable[[T], None] | None = None
        self.reply: asyncio.Future[T] | Future[T] | None = None

    def orphan(self, undo: Callable[[T], None]) -> None:
        """In the loop of the caller, which was cancelled: nobody will see the answer."""
        self.undo = undo
        if self.reply is None:  # it had been delivered, and is undone here
            self._take_back()

    def _take_back(self) -> None:
        if self.undo is not None and self.error is None:
            self.undo(cast("T", self.answer))

    def resolve(self) -> None:
        """In the loop of the caller, or in the writer's thread if the caller blocks."""
        reply, self.reply = self.reply, None
        if reply is None:
            return
        if reply.cancelled():
            self._take_back()
        elif self.error is not None:
            reply.set_exception(self.error)
        else:
            reply.set_result(cast("T", self.answer))


def _deliver(ops: Sequence[Op[Any]]) -> None:
    """Answer callers: one wake-up for each loop, however many of its calls are done."""
    loops: dict[asyncio.AbstractEventLoop, list[Op[Any]]] = {}
    for op in ops:
        if isinstance(op.reply, Future):
            op.reply.set_running_or_notify_cancel()
            op.resolve()
        elif op.reply is not None:
            loops.setdefault(op.reply.get_loop(), []).append(op)
    for loop, mine in loops.items():
        # A caller whose loop is closed has nobody to tell.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(ops: Sequence[Op[Any]]) -> None:
    for op in ops:
        op.resolve()


class Turn:
    """Fairness between processes: whoever waits for the lock says so, and the holder lets it in.

    SQLite's own waiting sleeps up to 100 ms and starves some processes. Here waiters hold a shared
    lock on a file, tested by the one that has just committed. Nothing depends on it.
    """

    __slots__ = ("_mine", "_others", "_path")

    def __init__(self, folder: Path) -> None:
        self._path = folder / "turn"
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._mine = os.open(self._path, flags, 0o600)
        self._others = os.open(self._path, flags, 0o600)

    @contextlib.contextmanager
    def waiting(self) -> Any:
        flock = _flock()
        if flock is None:
            yield
            return
        call, shared, _, unlock = flock
        call(self._mine, shared)
        try:
            yield
        finally:
            call(self._mine, unlock)

    def yield_to_others(self) -> None:
        flock = _flock()
        if flock is None:
            return
        call, _, exclusive, unlock = flock
        try:
            call(self._others, exclusive)
        except BlockingIOError:
            time.sleep(0.0005)
        else:
            call(self._others, unlock)

    def close(self) -> None:
        os.close(self._mine)
        os.close(self._others)


def _flock() -> tuple[Callable[[int, int], None], int, int, int] | None:
    try:
        import fcntl
    except ImportError:
        return None
    # Two processes that wait at once share it; only the test after a commit asks for it alone.
    return fcntl.flock, fcntl.LOCK_SH, fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN


class Writer:
    """Owns the writing connection, from its own thread alone."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        moves: Moves,
        path: str,
        folder: Path,
        identity: Identity,
        ballast: Ballast,
        durability: Durability,
        committed: Callable[[int], None],
    ) -> None:
        self._connect = connect
        self._moves = moves
        self._path = path
        self._identity = identity
        self._ballast = ballast
        self._synchronous = schema.synchronous_for(durability)
        self._committed = committed
        self._turn = Turn(folder)
        self._waiting: deque[Op[Any]] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._broken: StoreError | None = None
        self._strikes = 0
        self._pages = 0
        self._checkpointed = 0
        self._now_synchronous = self._synchronous
        self._connection = self._open()
        self._thread = threading.Thread(target=self._work, name="outlast-writer", daemon=True)
        self._thread.start()

    def _open(self) -> apsw.Connection:
        connection = self._connect()
        connection.set_wal_hook(self._logged)
        self._now_synchronous = self._synchronous
        self._moves.attach(connection)
        return connection

    # -- for callers

    def submit(self, op: Op[Any]) -> None:
        """Hand a call over. Raises ``StoreClosed`` or what broke the store; nothing is done."""
        if self._closing:
            raise StoreClosed("the store is closed")
        if self._broken is not None:
            raise self._broken
        self._waiting.append(op)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Finish what is waiting, tidy the log up, let go. Blocks."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._turn.close()

    # -- the thread

    def _work(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                self._serve(self._take())
            if self._closing and not self._waiting:
                break
        with contextlib.suppress(apsw.Error):
            self._connection.close()

    def _take(self) -> list[Op[Any]]:
        group, size = [], 0
        while self._waiting and size < GROUP:
            op = self._waiting.popleft()
            group.append(op)
            size += op.size
        return group

    def _serve(self, group: list[Op[Any]]) -> None:
        if self._broken is not None:
            self._fail(group, self._broken)
            return
        group = self._refuse_if_full(group)
        if not group:
            return
        try:
            news = self._transact(group)
        except apsw.Error as error:
            self._after_error(group, error)
        except StoreError as error:
            if not isinstance(error, StoreFull):
                self._broken = error
            self._fail(group, error)
        except BaseException as error:
            self._fail(group, error)
        else:
            self._strikes = 0
            _deliver(group)
            if news:
                self._committed(news)
            self._turn.yield_to_others()
            if self._pages - self._checkpointed >= CHECKPOINT_PAGES:
                self._checkpoint()

    def _refuse_if_full(self, group: list[Op[Any]]) -> list[Op[Any]]:
        """Without room, new jobs are refused, so that those accepted can be settled; the rest."""
        adds = [op for op in group if op.jobs is not None]
        if not adds or self._ballast.room():
            return group
        error = StoreFull(
            f"the disk of {self._path} is nearly full; new jobs are refused so that those accepted"
            " can be settled. Nothing was stored"
        )
        self._fail(adds, error)
        return [op for op in group if op.jobs is None]

    def _transact(self, group: list[Op[Any]]) -> int:
        """Do the calls in one transaction and commit it; the sum of their news."""
        moves = self._moves
        synced = any(op.synced for op in group)
        self._set_synchronous(self._synchronous if synced else min(self._synchronous, 1))
        careful = False
        done = 0
        while True:
            self._begin()
            try:
                moves.begin(careful=careful)
                done = 0
                done = 0
                for op in group if careful else self._merge_adds(group):
                    try:
                        op.error = None
                        op.answer = op.run(moves)
                    except (OutlastError, asyncio.QueueFull) as error:
                        # Refused before anything was written: the others are not concerned.
                        op.error = error
                    done |= moves.take_news()
                moves.finish()
                self._connection.execute("COMMIT")
                break
            except Careful:
                self._rollback()
                if careful:
                    raise RuntimeError("rows changed within one transaction") from None
                careful = True
            except BaseException:
                self._rollback()
                raise
        self._identity.check()
        return done

    def _merge_adds(self, group: Sequence[Op[Any]]) -> list[Op[Any]]:
        """Write what many callers add in one statement; the calls that are still to be done.

        Their order among the other calls doesn't matter: nobody has been answered yet.
        """
        adds = [op for op in group if op.simple]
        if len(adds) < 2:
            return list(group)
        answers = self._moves.add([job for op in adds for job in op.jobs or ()])
        at = 0
        for op in adds:
            op.answer = answers[at : at + op.size]
            at += op.size
        return [op for op in group if not op.simple]

    def _set_synchronous(self, level: int) -> None:
        if level == self._now_synchronous:
            return
        self._connection.pragma("synchronous", level)
        if self._connection.pragma("synchronous") != level:
            raise StoreUnavailable(f"{self._path}: SQLite won't set synchronous={level}")
        self._now_synchronous = level

    def _begin(self) -> None:
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            pass
        else:
            return
        deadline = time.monotonic() + LOCK_WAIT
        pause = 0.0001
        with self._turn.waiting():
            while True:
                time.sleep(pause)
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except apsw.BusyError:
                    if time.monotonic() > deadline:
                        raise
                    pause = min(pause * 1.2, 0.001)
                else:
                    return

    def _rollback(self) -> None:
        self._moves.abandon()
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _fail(
        self, group: Sequence[Op[Any]], error: BaseException, *, uncertain: bool = False
    ) -> None:
        for op in group:
            if op.error is None:
                op.error = error
                if uncertain and op.jobs:
                    op.error = EnqueueUncertain(
                        f"{error}; these jobs may or may not be stored, adding them again is safe",
                        [job.id for job in op.jobs],
                    )
        _deliver(group)

    # -- bad days

    def _after_error(self, group: list[Op[Any]], error: apsw.Error) -> None:
        ours = mapped(error, self._path)
        if isinstance(error, apsw.FullError):
            self._make_room(group, ours)
            return
        if isinstance(error, apsw.BusyError):
            self._fail(group, ours)
            return
        self._strikes += 1
        self._fail(group, ours, uncertain=isinstance(error, apsw.IOError | apsw.CorruptError))
        self._reopen(ours)

    def _make_room(self, group: list[Op[Any]], ours: StoreError) -> None:
        """The disk is full: refuse new work, and settle what is done from the ballast."""
        adds = [op for op in group if op.jobs is not None]
        rest = [op for op in group if op.jobs is None]
        self._fail(adds, ours)
        if rest and self._ballast.drop():
            self._serve(rest)
        else:
            self._fail(rest, ours)

    def _reopen(self, cause: StoreError) -> None:
        """Never go on with a connection that saw an I/O error: what it believes may be untrue."""
        with contextlib.suppress(apsw.Error):
            self._connection.close()
        if self._strikes >= STRIKES:
            self._broken = StoreUnavailable(
                f"{cause}. It happened {self._strikes} times in a row, so outlast stopped writing;"
                " check the disk, then open the store again"
            )
            return
        try:
            self._connection = self._open()
            found = self._connection.pragma("quick_check")
            if found != "ok":
                self._broken = StoreDamaged(f"{self._path} is damaged: {found}")
        except (apsw.Error, StoreError) as error:
            self._broken = error if isinstance(error, StoreError) else mapped(error, self._path)

    # -- the log

    def _logged(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self._pages:
            self._checkpointed = 0
        self._pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Copy the log into the database; if readers keep it from starting anew, wait for them."""
        mode = apsw.SQLITE_CHECKPOINT_PASSIVE
        if self._pages >= RESTART_PAGES:
            mode = apsw.SQLITE_CHECKPOINT_RESTART
            self._connection.set_busy_timeout(500)
        try:
            self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            pass
        except apsw.Error as error:
            self._strikes += 1
            self._reopen(mapped(error, self._path))
            return
        finally:
            with contextlib.suppress(apsw.Error):
                self._connection.set_busy_timeout(0)
        self._checkpointed = self._pages
