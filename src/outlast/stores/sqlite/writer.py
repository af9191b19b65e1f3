"""The one thread that writes: it does whatever is waiting in one transaction, then answers.

Everything that was promised is synced before it is answered. A claim promises nothing, so a
transaction of claims alone is committed without waiting for the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from outlast.errors import (
    OutlastError,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreStopped,
    StoreUnavailable,
)
from outlast.stores.news import WORK
from outlast.stores.replies import deliver
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.faults import OF_ONE_CALL, UNREADABLE, Doubtful, is_full, mapped
from outlast.stores.sqlite.forks import Gate
from outlast.stores.sqlite.log import Log
from outlast.stores.sqlite.mend import mend
from outlast.stores.sqlite.moves import Careful, Moves
from outlast.stores.sqlite.op import by_patience, fail, merge_adds, pile
from outlast.stores.sqlite.turn import Turn
from outlast.stores.sqlite.wake import Wake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from outlast.store import Durability
    from outlast.stores.sqlite.files import Ballast, Identity
    from outlast.stores.sqlite.op import Op, Single

__all__ = ["Writer"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

GROUP = 2000
"""Rows in one transaction, roughly: beyond that the others have waited long enough."""
GLANCE = 0.02
"""Seconds for which it is believed that the disk has room and that the files are still ours, before
a commit. After it, and before it is answered, they are looked at each time."""
LOCK_WAIT = 30.0
AWAKE = 1.0
"""Seconds of one turn of that wait at most: what took longer was stopped, or its machine was."""
STRIKES = 3
"""I/O errors in a row after which the store is given up until it is opened again."""


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
        ring: Callable[[int], None],
    ) -> None:
        self._connect = connect
        self._moves = moves
        self._path = path
        self._identity = identity
        self._ballast = ballast
        self._synchronous = schema.synchronous_for(durability)
        self._committed = committed
        self._ring = ring
        self.turn = Turn(folder)
        self._waiting: deque[Op[Any] | Single] = deque()
        self._parked: list[Op[Any]] = []
        self._roused = False
        self._wake = Wake()
        self._closing = self._ended = False
        self._broken: StoreError | None = None
        self._strikes = 0
        self._log = Log(ballast)
        self._room_until = self._seen_until = self._sure_until = 0.0
        self._now_synchronous = self._synchronous
        self._connection = self._open()
        self._sound = True
        identity.learn()
        self._gate = Gate()
        self._thread = threading.Thread(target=self._work, name="outlast-writer", daemon=True)
        self._thread.start()

    def _open(self) -> apsw.Connection:
        connection = self._connect()
        self._log.watch(connection)
        self._now_synchronous = self._synchronous
        self._moves.attach(connection)
        return connection

    # -- for callers

    def submit(self, op: Op[Any] | Single) -> None:
        """Hand a call over. Raises ``StoreClosed`` or what broke the store; nothing is done."""
        if self._closing:
            raise StoreClosed("the store is closed")
        if self._broken is not None:
            raise self._broken
        self._waiting.append(op)
        self._wake.set()
        if self._ended:
            self._refuse_the_rest()

    def rouse(self) -> None:
        """Have the calls done that wait until there is something to do (``Op.idle``)."""
        self._roused = True
        self._wake.set()

    def close(self) -> None:
        """Finish what is waiting, tidy the log up, let go. Blocks."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._ended = True
        self._refuse_the_rest()
        self.turn.close()

    def _refuse_the_rest(self) -> None:
        """What came too late for the thread, or waits for what will never come."""
        parked, self._parked = self._parked, []
        fail(parked, StoreClosed("the store is closed"))
        with contextlib.suppress(IndexError):
            while True:
                op = self._waiting.popleft()
                late = pile([op]) if isinstance(op, tuple) else [op]
                fail(late, StoreClosed("the store is closed"))

    # -- the thread

    def _work(self) -> None:
        while True:
            self._wake.wait()
            while group := self._take():
                with self._gate.lock:
                    try:
                        self._serve(group)
                    except BaseException as error:
                        self._give_up(group, error)
            if self._closing and not self._waiting:
                break
        with self._gate, contextlib.suppress(apsw.Error):
            self._connection.close()
        self._gate.close()

    def _take(self) -> list[Op[Any]]:
        """What to do next. Last come the calls that waited for what the others may bring."""
        group: list[Op[Any]] = []
        last: list[Op[Any]] = []
        singles: list[Single] = []
        size = 0
        roused = self._roused
        if roused:
            self._roused = False
            last = self._unpark()
        while self._waiting and size < GROUP:
            op = self._waiting.popleft()
            if isinstance(op, tuple):
                singles.append(op)
                size += 1
                continue
            if op.idle is None:
                group.append(op)
            elif op.idle() and not roused:
                self._parked = [*self._unpark(), op]
                continue
            else:
                # Who roused may have meant this one, which was on its way here.
                last.append(op)
            size += op.size
        if singles:
            group += pile(singles)
        if roused and self._waiting:
            self._roused = True
        if self._parked and any(op.jobs is not None for op in group):
            last += self._unpark()
        return group + last

    def _unpark(self) -> list[Op[Any]]:
        parked, self._parked = self._parked, []
        return [op for op in parked if op.wanted]

    def _serve(self, group: list[Op[Any]]) -> None:
        if self._broken is None and not self._sound:
            self._restore(group)
        if self._broken is not None:
            fail(group, self._broken)
        elif self._sound:
            left = self._refuse_if_full(group)
            if left is None:
                self._serve(group)
            elif left:
                self._write(left)

    def _write(self, group: list[Op[Any]]) -> None:
        try:
            news = self._transact(group)
        except Doubtful as doubt:
            # Look before anything more is written.
            self._seen_until = self._sure_until = 0.0
            fail(group, doubt.cause, uncertain=True)
        except StoreUnavailable as error:
            # Nothing was written. What was taken away or out of sight may be put back.
            fail(group, error)
        except StoreError as error:
            self._broken = error
            fail(group, error)
        except Exception as error:
            self._after_error(group, error)
        else:
            self._strikes = 0
            self._tell(group, news)
            self.turn.yield_to_others()
            self._on_log(self._log.copy_if_due)

    def _tell(self, group: Sequence[Op[Any]], news: int) -> None:
        """Answer. Who waited for what the others have brought comes first: there is work to do."""
        if news:
            self._committed(news)
        if news & WORK and self._parked:
            self._roused = True
        first, rest = by_patience(group, news)
        if first:
            deliver(first)
        deliver(rest, soon=bool(first))
        if news:
            self._ring(news)

    def _give_up(self, group: Sequence[Op[Any]], error: BaseException) -> None:
        """A fault of ours. The thread lives on to say so, since callers wait for its answer."""
        _log.error("%s: outlast stopped writing", self._path, exc_info=error)
        self._broken = StoreStopped(
            f"{self._path}: outlast stopped writing after an error it did not expect ({error!r});"
            " close the store, and open it again"
        )
        self._broken.__cause__ = error
        fail([op for op in group if not op.told], self._broken, uncertain=True)

    def _refuse_if_full(self, group: list[Op[Any]]) -> list[Op[Any]] | None:
        """Without room, new jobs are refused, so that those accepted can be settled; the rest.

        None if the look at it cost the connection.
        """
        now = time.monotonic()
        if now < self._room_until:
            return group
        adds = [op for op in group if op.jobs is not None]
        if not adds:
            return group
        error: StoreUnavailable
        try:
            if self._on_log(self._log.has_room):
                self._room_until = now + GLANCE
                return group
            if not self._sound:
                return None
            error = StoreFull(
                f"the disk of {self._path} is nearly full; new jobs are refused so that those"
                " accepted can be settled. Nothing was stored"
            )
        except StoreUnavailable as found:
            error = found
        fail(adds, error)
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
                now = time.monotonic()
                if now > self._seen_until:
                    self._identity.check()
                    self._sure_until = now + GLANCE
                moves.begin(careful=careful)
                done = 0
                for op in group if careful else merge_adds(moves, group):
                    try:
                        op.error = None
                        op.answer = op.do(moves)
                    except (OutlastError, asyncio.QueueFull) as error:
                        # Refused before anything was written: the others are not concerned.
                        op.error = error
                    done |= moves.take_news()
                # What was merged has told its news though no call was left to be done for it.
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
        try:
            self._see()
        except StoreUnavailable as error:
            raise Doubtful(error) from error
        return done

    def _see(self) -> None:
        """Whether the files are still ours. Each of them is looked at now and then in any case."""
        now = time.monotonic()
        if now > self._sure_until:
            self._identity.check()
            self._sure_until = now + GLANCE
        else:
            self._identity.look()
        self._seen_until = now + GLANCE

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
        waited, pause = 0.0, 0.0001
        with self.turn.waiting():
            while True:
                began = time.monotonic()
                with self._gate.outside():
                    time.sleep(pause)
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except apsw.BusyError:
                    # Time in which this process stood still itself, it did not wait.
                    waited += min(time.monotonic() - began, AWAKE)
                    if waited > LOCK_WAIT:
                        raise
                    pause = min(pause * 1.2, 0.001)
                else:
                    return

    def _rollback(self) -> None:
        self._moves.abandon()
        with contextlib.suppress(apsw.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    # -- bad days

    def _after_error(self, group: list[Op[Any]], error: Exception) -> None:
        if not isinstance(error, apsw.Error) or isinstance(error, OF_ONE_CALL):
            self._sort_out(group, error)
            return
        ours = mapped(error, self._path)
        if is_full(error, self._connection):
            self._make_room(group, StoreFull(f"no space left for {self._path}; nothing was stored"))
        elif isinstance(error, apsw.BusyError):
            fail(group, ours)
        elif isinstance(error, apsw.CorruptError) and self._mended(ours):
            self._serve(group)  # nothing of it was committed
        else:
            if self._sound:
                self._lose(ours)
            doubtful = isinstance(error, apsw.IOError | apsw.CorruptError)
            fail(group, self._broken or ours, uncertain=doubtful)

    def _sort_out(self, group: list[Op[Any]], error: Exception) -> None:
        """One of the calls can't be done: the others are not to suffer for it."""
        calls = [call for op in group for call in op.apart()]
        if len(calls) > 1:
            for op in calls:
                self._serve([op])
        else:
            known = isinstance(error, (apsw.Error, *UNREADABLE))
            ours = mapped(error, self._path) if known else error
            fail(group, ours)

    def _make_room(self, group: list[Op[Any]], ours: StoreError) -> None:
        """The disk is full: refuse new work, and settle what is done from the ballast."""
        adds = [op for op in group if op.jobs is not None]
        rest = [op for op in group if op.jobs is None]
        fail(adds, ours)
        if rest and (self._ballast.drop() or self._on_log(self._log.start_anew)):
            self._serve(rest)
        else:
            fail(rest, ours)

    def _on_log(self, act: Callable[[], T]) -> T | None:
        """What the act gives; None if it failed in a way that costs the connection."""
        try:
            return act()
        except apsw.Error as error:
            self._lose(mapped(error, self._path))
            return None

    def _lose(self, cause: StoreError) -> None:
        """Never go on with a connection that saw an I/O error: what it believes may be untrue."""
        self._sound = False
        self._strikes += 1
        with contextlib.suppress(apsw.Error):
            self._connection.close()
        if self._strikes >= STRIKES:
            self._broken = StoreStopped(
                f"{cause}. It happened {self._strikes} times in a row, so outlast stopped writing;"
                " check the disk, then close the store and open it again"
            )

    def _mended(self, cause: StoreError) -> bool:
        """Open the file anew and rebuild its indexes; whether that is worth another try."""
        self._lose(cause)
        if self._broken is not None:
            return False
        try:
            self._connection = self._open()
            mend(self._connection, self._path)
        except apsw.Error:
            return False  # to be tried again with the next call
        except StoreError as error:
            self._broken = error
            return False
        self._sound = True
        return True

    def _restore(self, group: Sequence[Op[Any]]) -> None:
        """Open the file anew and look at it, before anything more is written."""
        try:
            self._connection = self._open()
            found = self._connection.pragma("quick_check")
            if found != "ok":
                self._broken = StoreDamaged(f"{self._path} is damaged: {found}")
            self._sound = True
        except apsw.Error as error:
            ours = mapped(error, self._path)
            self._lose(ours)
            fail(group, ours)
        except StoreError as error:
            self._broken = error
