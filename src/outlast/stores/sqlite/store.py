"""The SQLite store: every call becomes one step of the writer's next transaction, or a read.

One file, WAL, ``synchronous=FULL``. Threads: one that writes, one that reads, one that hears the
bell of other processes. Leases are measured on the machine's monotonic clock, which all its
processes share, so that a wall clock that jumps ends none of them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import apsw

from outlast import lifeline
from outlast.errors import StoreError, StoreUnavailable
from outlast.job import Alike
from outlast.limits import check_jobs, is_plain
from outlast.store import Durability, Feature
from outlast.stores.news import ENDED, ROOM, WORK
from outlast.stores.replies import Landing
from outlast.stores.sqlite import files, opening, schema, upkeep
from outlast.stores.sqlite.asking import claim_op, wait_for
from outlast.stores.sqlite.backup import backup
from outlast.stores.sqlite.bell import Bell
from outlast.stores.sqlite.faults import UNREADABLE, mapped
from outlast.stores.sqlite.forks import Forks
from outlast.stores.sqlite.joined import Joinable
from outlast.stores.sqlite.ledger import Reads
from outlast.stores.sqlite.moves import Moves
from outlast.stores.sqlite.moving import Moved
from outlast.stores.sqlite.op import Op
from outlast.stores.sqlite.reader import Reader
from outlast.stores.sqlite.steps import Stepped
from outlast.stores.sqlite.verdicts import settle
from outlast.stores.sqlite.writer import Writer
from outlast.stores.urls import file_url
from outlast.stores.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Added, Claim, Death, Depth, Job, Lost, Progress, Status, Verdict
    from outlast.store import Cancelled, Line, WorkerInfo

__all__ = ["SqliteStore"]

T = TypeVar("T")


class SqliteStore(Stepped, Joinable, Moved):
    """Jobs in one file on this machine."""

    features = ~Feature(0)

    def __init__(
        self,
        path: str,
        *,
        namespace: str = "default",
        durability: Durability | None = None,
        create: bool = True,
        clock: Clock | None = None,
        chance: Chance | None = None,
        vfs: str | None = None,
    ) -> None:
        self.path = files.real(path)
        super().__init__(
            file_url(self.path),
            namespace=namespace,
            durability=durability,
            create=create,
            clock=clock,
            chance=chance,
        )
        self.library = schema.library()
        self.lifelines = files.companion(self.path)
        self._vfs = vfs
        self._writer: Writer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that added last: whoever runs in it is in the process that opened the store."""
        self._usual: Job | None = None
        """The model of the last jobs that were plain."""
        self._reader: Reader | None = None
        self._bell: Bell | None = None
        self._ballast = files.Ballast(files.companion(self.path))

    # -- opening and closing

    def open_now(self) -> None:
        if self._pid not in (0, os.getpid()):
            self._lock = threading.Lock()  # a thread of the parent may have held it
        with self._lock:
            if self._writer is not None and self._pid == os.getpid():
                return
            try:
                with Forks.busy(self.path):
                    opening.despite_a_full_disk(self.path, self._open, self._ballast)
            except (apsw.Error, *UNREADABLE) as error:
                raise mapped(error, self.path) from error
            except OSError as error:
                raise StoreUnavailable(f"can't open {self.path}: {error}") from error
            try:
                self._recover_the_dead()
            except BaseException:
                self._shut()
                raise

    def _open(self) -> None:
        connect = opening.prepare(
            self.path,
            self.required,
            create=self._create,
            store_id=self._chance.token().hex(),
            vfs=self._vfs,
        )
        folder = files.companion(self.path)
        identity = files.Identity(self.path)
        if not self._ballast.is_needed():
            self._ballast.keep()
        writer = Writer(
            connect, Moves(self.namespace, self.clock), self.path, folder, identity,
            self._ballast, self.required, self._news.heard, self._ring,
        )  # fmt: skip
        try:
            self._reader = Reader(connect, self.namespace, identity)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self.line = asyncio.Lock()
        Forks.opened(identity)
        self._identity = identity
        self._bell = Bell(folder, self._chance.token().hex(), self._heard)
        self._pid = os.getpid()

    async def versions(self) -> Versions:
        """See ``Versioned``."""
        await asyncio.to_thread(files.look, self.path, create=True)
        found = await asyncio.to_thread(schema.version_at, self.path)
        return Versions(found, len(schema.MIGRATIONS))

    def _recover_the_dead(self) -> None:
        for worker, cause in lifeline.dead(files.companion(self.path)):
            run = partial(upkeep.recover_worker, worker=worker, cause=cause)
            self._hand_over(Op(run, synced=True)).result()
        # After the dead whose marks are left: those say more. Whoever finds none waits for no lock.
        anybody = self._reading().now(partial(Reads.overdue, by=upkeep.STRANDED))
        while anybody and self._hand_over(Op(upkeep.recover_stranded, synced=True)).result():
            pass

    def close_now(self) -> None:
        with self._lock:
            self._shut()
        self._news.missed()

    def _shut(self) -> None:
        writer, reader, bell = self._writer, self._reader, self._bell
        self._loop = None
        self._writer = self._reader = None
        if writer is None or reader is None or bell is None or self._pid != os.getpid():
            self._bell = None
            return
        writer.close()
        reader.close()
        Forks.closed(self._identity)
        # Last: what the writer has committed on its way out is to be rung as well.
        self._bell = None
        bell.close()

    # -- the protocol

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        model = self._model_of(jobs, capacity)
        writer, loop = self._writer, asyncio.get_running_loop()
        if writer is None or loop is not self._loop:
            writer = self._writing()
            self._loop = loop
            Landing.prepare(loop)
        reply: asyncio.Future[Sequence[Added]] = loop.create_future()
        if model is not None and len(jobs) == 1:
            if type(jobs) is Alike:
                writer.submit((model, loop, reply, jobs.ids[0], jobs.payloads[0]))
            else:
                writer.submit((model, loop, reply, jobs[0].id, jobs[0].payload))
        else:
            op = self._op_of(jobs, capacity, model)
            op.reply = reply
            writer.submit(op)
        return await reply

    def _add_op(self, jobs: Sequence[Job], capacity: int | None) -> Op[Sequence[Added]]:
        return self._op_of(jobs, capacity, self._model_of(jobs, capacity))

    def _op_of(
        self, jobs: Sequence[Job], capacity: int | None, model: Job | None
    ) -> Op[Sequence[Added]]:
        if model is not None:
            return Op(None, True, len(jobs), jobs, model)
        run = partial(self._adding, jobs=jobs, capacity=capacity)
        return Op(run, True, len(jobs), jobs)

    def _model_of(self, jobs: Sequence[Job], capacity: int | None) -> Job | None:
        """The model of jobs that are plain and can't be refused."""
        model = check_jobs(jobs)
        if model is None or capacity is not None:
            return None
        if model is self._usual:
            return model
        if not is_plain(model):
            return None
        self._usual = model
        return model

    def _adding(self, moves: Moves, jobs: Sequence[Job], capacity: int | None) -> list[Added]:
        seen = {} if capacity is None else self._news.count(ROOM, {job.queue for job in jobs})
        try:
            return moves.add(jobs, capacity)
        except asyncio.QueueFull:
            self._news.look(ROOM, seen)
            raise

    async def claim_next(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        timeout: float,
        enough: asyncio.Future[None],
    ) -> Sequence[Claim]:
        op = self._claim_op(queues, tasks, limit, lease, worker, patient=True)
        Landing.prepare(asyncio.get_running_loop())
        place = self._writing(), self._reading(), self.clock, self._unclaim
        return await wait_for(op, timeout, enough, *place) if limit > 0 else []

    def _claim_op(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
        *,
        patient: bool = False,
    ) -> Op[Sequence[Claim]]:
        self._writing()
        self._listen()
        return claim_op(
            self._news, self._chance, queues, tasks, limit, lease, worker, newest, patient=patient
        )

    def _settle_op(self, verdicts: Sequence[Verdict]) -> Op[Sequence[Lost]]:
        return Op(partial(settle, verdicts=verdicts), synced=True, size=len(verdicts))

    async def renew(
        self, claims: Sequence[Claim], lease: float, notes: Sequence[Progress] = ()
    ) -> list[Lost]:
        run = partial(upkeep.renew, claims=claims, lease=lease, notes=notes)
        return await self._do(Op(run, synced=False, size=len(claims)))

    async def recover(self, limit: int) -> int:
        run = partial(upkeep.recover, limit=limit, asked=self.clock.monotonic())
        return await self._do(Op(run, synced=True))

    async def recover_worker(self, worker: str, cause: Death) -> int:
        return await self._do(Op(partial(upkeep.recover_worker, worker=worker, cause=cause), True))

    async def prune(self, limit: int) -> int:
        return await self._do(Op(partial(upkeep.prune, limit=limit), synced=False, size=limit))

    async def wait(self, queues: Sequence[str], timeout: float, *, space: bool = False) -> None:
        kind = ROOM if space else WORK
        deadline = self.clock.monotonic() + timeout
        while True:
            self._writing()
            self._listen()
            waiter = self._news.wait(kind)
            try:
                if self._news.is_new(kind, queues):
                    return
                left = deadline - self.clock.monotonic()
                due = None if space else await self._read(Reads.next_due)
                if due is not None:
                    left = min(left, due - self.clock.now())
                if left <= 0:
                    return
                if self._writer is not None:
                    await waiter.sleep(self.clock, left)
            finally:
                self._news.drop(waiter)

    async def depth(self, queue: str) -> Depth:
        return await self._read(partial(Reads.depth, queue=queue, now=self.clock.now()))

    def depth_now(self, queue: str) -> Depth:
        """``depth`` for callers without an event loop; blocks."""
        return self._reading().now(partial(Reads.depth, queue=queue, now=self.clock.now()))

    # -- the ledger

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        return await self._read(partial(Reads.get, ids=ids))

    async def _find(self, **asked: Any) -> Sequence[Job]:
        return await self._read(partial(Reads.find, **asked))

    async def cancel(self, ids: Sequence[str]) -> Sequence[Cancelled]:
        return await self._do(Op(partial(upkeep.cancel, ids=ids), synced=True, size=len(ids)))

    async def revive(self, ids: Sequence[str]) -> Sequence[bool]:
        return await self._do(Op(partial(upkeep.revive, ids=ids), synced=True, size=len(ids)))

    async def purge(self, queue: str, status: Sequence[Status], *, dry_run: bool = False) -> int:
        if dry_run:
            return await self._read(partial(Reads.count, queue=queue, status=status))
        total = 0
        while True:
            run = partial(upkeep.purge, queue=queue, status=status)
            gone = await self._do(Op(run, synced=True))
            total += gone
            if gone < upkeep.PURGED:
                return total  # what is added meanwhile stays, and can't keep it from ending

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        deadline = self.clock.monotonic() + timeout
        while True:
            self._writing()
            self._listen()
            waiter = self._news.wait(ENDED)
            try:
                ended = await self._read(partial(Reads.ended, ids=ids))
                left = deadline - self.clock.monotonic()
                if ended or left <= 0:
                    return ended
                await waiter.sleep(self.clock, left)
            finally:
                self._news.drop(waiter)

    async def namespaces(self) -> Sequence[str]:
        return await self._read(Reads.namespaces)

    async def lines(self) -> Sequence[Line]:
        return await self._read(partial(Reads.lines, now=self.clock.now()))

    async def pause(self, queue: str, paused: bool = True) -> None:
        await self._do(Op(partial(upkeep.pause, queue=queue, paused=paused), synced=True))

    async def beat(self, info: WorkerInfo) -> None:
        await self._do(Op(partial(upkeep.beat, info=info), synced=False))

    async def leave(self, worker: str) -> None:
        await self._do(Op(partial(upkeep.leave, worker=worker), synced=False))

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._read(partial(Reads.workers, now=self.clock.now()))

    async def backup(self, path: Path) -> dict[str, Any]:
        self._writing()
        connect = partial(schema.connect, self.path, self.required, self._vfs)
        found = await asyncio.to_thread(backup, connect, self.path, path)
        # For the doctor, which asks when the last one was made.
        await self._do(Op(upkeep.note_backup, True))
        return found

    # -- the writer and the reader

    def _writing(self) -> Writer:
        return self._used(self._writer)

    def _reading(self) -> Reader:
        return self._used(self._reader)

    def _submit(self, op: Op[Any]) -> None:
        self._used(self._writer).submit(op)

    async def _read(self, run: Callable[[Reads], T]) -> T:
        return await self._reading().do(run)

    # -- news

    def _ring(self, news: int) -> None:
        """In the writer's thread, after a commit: tell the other processes."""
        bell = self._bell
        if bell is not None:
            bell.ring(news)

    def _heard(self, news: int) -> None:
        """In the bell's thread: something was committed elsewhere."""
        self._news.heard(news)
        writer = self._writer
        if news & WORK and writer is not None:
            writer.rouse()

    def _changed(self) -> bool:
        """Whether the file was written to: for systems where no bell can be heard."""
        reader = self._reader
        try:
            return reader is not None and reader.now(Reads.data_changed)
        except StoreError:
            return True  # those who wait will look, and hear of it

    def _listen(self) -> None:
        """Whoever looks wants to hear of what comes after; the first time costs a thread."""
        if self._bell is not None:
            self._bell.listen(self._changed)
