"""The worker of one process: puts the loops together, and takes them apart in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import ConfigurationError
from outlast.execution import Means
from outlast.hooks import tell, tell_and_wait
from outlast.lifeline import Lifeline
from outlast.limits import check_name
from outlast.steps import keeper_of
from outlast.worker.claims import MAX_AHEAD, MAX_UNSETTLED, Claims
from outlast.worker.crew import Crew
from outlast.worker.processes import WorkerProcesses
from outlast.worker.renew import Renewal
from outlast.worker.settle import Settling
from outlast.worker.side import RARE, Outage, Side
from outlast.worker.tend import Upkeep
from outlast.worker.threads import WorkerThreads
from outlast.worker.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.execution import Runnable
    from outlast.hooks import Hooks
    from outlast.store import Store

__all__ = ["Worker"]

log = logging.getLogger(__name__)

BEAT = 0.25
LULL = 8
"""Beats with nothing to do after which they become rare, as all that can wait does."""
REST = 5.0
"""Seconds until the next one then, unless there is work before."""
EXTRA = 1.5
"""Seconds that a run has to clean up after it was cancelled at the end of the grace time."""
LEAVE = 0.5
FLUSH = 2.0
"""Seconds to wait for a store that can't be reached before the worker ends without it."""


class Worker:
    """Claims jobs of some queues, runs those whose tasks it has, and settles them.

    ``open_store`` gives a store that is not open yet; it is called twice, or once with ``store``:
    one that is open in this event loop for as long as the worker runs, and serves no other worker.
    ``lease`` is how many seconds a job stays ours without a sign of life, ``grace`` how many a
    running job has to end after ``stop``. ``id`` must never be used twice; without it one is made.
    ``renew_on="loop"`` does without any thread or process of our own, for simulations: plain
    functions then run in the event loop, and a task that blocks it can lose its lease. ``kill``
    ends this process when a task blocks the loop for too long, ``quit`` when one has broken it:
    give that where nobody else has anything in the loop. ``before_claims`` is awaited when the
    store is open. ``home`` is a module that defines the ``processes=True`` tasks, if the functions'
    own modules don't.

    Raises ``ConfigurationError`` if an option is wrong.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        tasks: Mapping[str, Runnable],
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        lease: float = 15.0,
        grace: float = 30.0,
        hooks: Sequence[Hooks] = (),
        clock: Clock | None = None,
        chance: Chance | None = None,
        id: str | None = None,
        renew_on: Literal["thread", "loop"] = "thread",
        kill: Callable[[], None] | None = None,
        quit: Callable[[], None] | None = None,
        before_claims: Callable[[Worker], Awaitable[None]] | None = None,
        home: str | None = None,
        store: Store | None = None,
    ) -> None:
        _check(queues, concurrency, lease, grace)
        self.queues = tuple(dict.fromkeys(queues))
        self.concurrency = concurrency
        self.clock = clock or SystemClock()
        self.chance = chance or SystemChance()
        self.id = id or self.chance.uuid7()
        self.store: Store | None = None
        """Open while the worker runs."""
        self.marks: Lifeline | None = None
        """This worker's lifeline, where the store has a place for it."""
        self.stuck: list[str] = []
        """Jobs that would not end: their threads still run after the worker has ended."""
        self._open_store = open_store
        self._tasks = tasks
        self._lease = lease
        self._grace = grace
        self._hooks = tuple(hooks)
        self._on_thread = renew_on == "thread"
        self._kill = kill
        self._quit = quit
        self._unwinding = False
        self._before_claims = before_claims
        self._home = home
        self._lent = store
        self._stopping = False
        self._hurrying = False
        self._stop: asyncio.Future[None] | None = None
        self._hurry: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.id} queues={list(self.queues)} concurrency={self.concurrency}>"

    @property
    def tasks(self) -> Sequence[str]:
        """The names of the tasks it can run, sorted."""
        return sorted(self._tasks)

    def stop(self) -> None:
        """Claim nothing more, let what runs end within the grace time, give the rest back.

        A second call ends the grace time. Call it in the worker's event loop; from elsewhere, by
        ``loop.call_soon_threadsafe``. Before ``run`` it makes ``run`` return at once.
        """
        if self._stopping:
            self._hurrying = True
            _resolve(self._hurry)
        self._stopping = True
        _resolve(self._stop)

    async def run(self) -> None:
        """Work until ``stop``. Everything that is done by then is settled when this returns.

        Raises ``StoreError`` if the store can't be opened or fails for good; what was running
        then goes to other workers, blamed on nobody. Cancelling is like ``stop`` without grace.
        """
        loop = asyncio.get_running_loop()
        self._stop, self._hurry = loop.create_future(), loop.create_future()
        if self._stopping:
            return
        if self._lent is not None:
            await self._hold(self._lent)
            return
        store = self._open_store()
        await store.open()
        try:
            await self._hold(store)
        finally:
            await store.close()

    async def _hold(self, store: Store) -> None:
        self.store = store
        if store.lifelines is not None:
            slots = 2 * self.concurrency + 2 * MAX_AHEAD + MAX_UNSETTLED
            self.marks = Lifeline(store.lifelines, self.id, slots)
            self.marks.hold()
        await self._work(store)

    async def _work(self, store: Store) -> None:
        threads = WorkerThreads(self.concurrency)
        settling = Settling(store, self.clock, self._hooks)
        keeper = keeper_of(store, self.clock, self._lease)
        processes = WorkerProcesses(self._home, keeper)
        means = Means(
            clock=self.clock, chance=self.chance, marks=self.marks,
            threads=threads if self._on_thread else None,
            processes=processes if self._on_thread else None,
            keeper=keeper,
        )  # fmt: skip
        crew = Crew(self._tasks, means, self.marks, settling.put, self._hooks, self.concurrency)
        settling.settled, crew.fail = crew.settled, self._fail
        claims = Claims(
            store, crew, settling, self.clock,
            queues=self.queues, tasks=self._tasks, lease=self._lease, worker=self.id,
        )  # fmt: skip
        watch = Watch(
            crew, self.clock, self.marks, self._hooks,
            worker=self.id, grace=self._grace, kill=self._kill,
        )  # fmt: skip
        side = self._make_side(crew, settling, claims, watch)
        side.start(thread=self._on_thread)
        assert self._stop is not None
        try:
            # Whoever is ready has all that it needs, so that a store that goes away can come back.
            await asyncio.wait({side.opened, self._stop}, return_when=asyncio.FIRST_COMPLETED)
            if self._before_claims is not None:
                await self._before_claims(self)
            tell(self._hooks, "worker_started", self.id, self.queues, self.tasks)
            await self._loops(crew, settling, claims, watch)
        except BaseException as error:
            await self._give_up(crew, error)
            raise
        finally:
            await side.stop()
            threads.close()
            await processes.close()
            self._let_go(crew)
        await tell_and_wait(self._hooks, "worker_ending", self.id)
        tell(self._hooks, "worker_stopped", self.id)

    def _make_side(self, crew: Crew, settling: Settling, claims: Claims, watch: Watch) -> Side:
        loop = asyncio.get_running_loop()
        outage = Outage(self.clock, self._lease)
        settling.struck = claims.struck = outage.strike
        settling.reached = claims.reached = outage.reached
        upkeep = Upkeep(
            crew, self.clock, outage,
            worker=self.id, queues=self.queues, tasks=self._tasks, lease=self._lease,
        )  # fmt: skip
        renewal = Renewal(
            crew, self._lease, self.clock, lambda lost: loop.call_soon_threadsafe(crew.refuse, lost)
        )
        rounds = [renewal.turn, upkeep.recover, upkeep.prune, upkeep.census, upkeep.sign_in]
        if self._on_thread:
            rounds.append(watch.turn)
        # Somebody else's death is as urgent for a worker that has nothing to do.
        rare = min(RARE, self._lease / 5)
        return Side(
            self._open_store, upkeep.bury, rounds, lambda: rare if crew.idle else 0.0,
            upkeep.leave, self.clock, outage, self._fail,
        )  # fmt: skip

    async def _loops(self, crew: Crew, settling: Settling, claims: Claims, watch: Watch) -> None:
        """Run the loops of the worker's own event loop until it is stopped and drained."""
        assert self._stop is not None
        try:
            async with asyncio.TaskGroup() as group:
                settled = group.create_task(self._guard(settling.loop))
                claimed = group.create_task(self._guard(claims.loop))
                beat = partial(self._beat, crew, claims, watch)
                beating = group.create_task(self._guard(beat))
                cut_short = None
                try:
                    await self._guard(self._until_stopped)
                except asyncio.CancelledError as error:
                    if settled.done() or claimed.done() or beating.done():
                        raise  # a loop has failed; there is nothing to drain into
                    cut_short = error
                    self._hurrying = True
                    _resolve(self._hurry)
                tell(self._hooks, "worker_stopping", self.id)
                claims.stop()
                crew.close()
                await claimed
                await self._drain(crew)
                settling.close()
                await self._first({settled}, FLUSH)
                self._unwinding = True
                settled.cancel()
                beating.cancel()
                if cut_short is not None:
                    raise cut_short
        except BaseExceptionGroup as group_of_errors:
            raise group_of_errors.exceptions[0] from None

    async def _until_stopped(self) -> None:
        assert self._stop is not None
        await self._stop

    async def _guard(self, loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One of the worker's loops. If nobody who may has cancelled it, a task of the user has."""
        try:
            await loop()
        except asyncio.CancelledError:
            if not self._unwinding:
                self.broken("a task cancelled what runs in it")
            raise
        except BaseException:
            self._unwinding = True
            raise

    def broken(self, how: str) -> None:
        """A task broke the event loop: end the process by ``quit``, all it held under suspicion.

        In order, the jobs would be given back with nobody blamed, and the one that did it would
        break the next process, for ever. Does nothing without ``quit``.
        """
        if self._quit is None:
            return
        message = f"a task broke the event loop: {how}"
        log.error("%s; this process ends", message)
        if self.marks is not None:
            self.marks.accuse(message)
        self._quit()

    async def _beat(self, crew: Crew, claims: Claims, watch: Watch) -> None:
        ended, quiet = crew.ended, 0
        while True:
            now = self.clock.monotonic()
            claims.pace.measure(now, crew.ended)
            crew.tick(now)
            quiet = quiet + 1 if crew.ended == ended and not crew.held and not crew.runs else 0
            ended = crew.ended
            if quiet < LULL:
                watch.beat(now)
                await self.clock.sleep(BEAT)
                continue
            await self._rest(crew, watch, now)

    async def _rest(self, crew: Crew, watch: Watch, now: float) -> None:
        """A beat for a long while, or until there is work."""
        loop = asyncio.get_running_loop()
        work: asyncio.Future[None] = loop.create_future()

        def begin() -> None:
            """Before the first job is started, which may block the loop at once."""
            crew.idle = False
            watch.beat(self.clock.monotonic())
            loop.call_soon(_resolve, work)  # so that the job is started before we are woken

        crew.begin, crew.idle = begin, True
        watch.beat(now, REST)
        await self._first({work}, REST)

    async def _drain(self, crew: Crew) -> None:
        """Let what runs end, then make it end, then leave it."""
        if not crew.runs:
            return
        if not self._hurrying:
            await self._until_empty(crew, self._grace, self._hurry)
        crew.interrupt("shutdown")
        if await self._until_empty(crew, EXTRA, None):
            return
        self.stuck = sorted(crew.runs)
        log.error("these jobs would not end and are left to run out: %s", ", ".join(self.stuck))
        crew.interrupt("abandoned")
        await self._until_empty(crew, LEAVE, None)

    async def _until_empty(
        self, crew: Crew, seconds: float, sooner: asyncio.Future[None] | None
    ) -> bool:
        """Whether nothing runs any more, after at most so long."""
        empty = asyncio.ensure_future(crew.emptied())
        try:
            await self._first({empty} if sooner is None else {empty, sooner}, seconds)
        finally:
            empty.cancel()
        return not crew.runs

    async def _first(self, futures: set[asyncio.Future[None]], seconds: float) -> None:
        """Until one of them is done, or so much time has passed."""
        timer = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({*futures, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()

    async def _give_up(self, crew: Crew, error: BaseException) -> None:
        """After a failure: end what runs, without a word to the store."""
        if isinstance(error, OSError) and error.errno == errno.EBADF:
            self.broken(f"a descriptor of the worker was closed ({error!r})")
        if not isinstance(error, asyncio.CancelledError):
            log.error("the worker ends: %s: %s", type(error).__name__, error)
        crew.closed = True
        crew.interrupt("abandoned")
        await self._until_empty(crew, EXTRA, None)

    def _let_go(self, crew: Crew) -> None:
        """End the lifeline: in order if nothing is held, else so that nobody is blamed."""
        if self.marks is None:
            return
        if not crew.held:
            self.marks.release()
            return
        self.marks.blame(frozenset(), "the worker ended")
        if not self.stuck:
            self.marks.abandon()
        # Else the lock goes with the process: until then the job's thread still runs here.

    def _fail(self, error: BaseException) -> None:
        if self._stop is not None and not self._stop.done():
            self._stop.set_exception(error)
        else:
            log.error("while stopping: %s: %s", type(error).__name__, error, exc_info=error)


def _resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _check(queues: Sequence[str], concurrency: int, lease: float, grace: float) -> None:
    if isinstance(queues, str) or not queues:
        raise ConfigurationError(f"queues={queues!r}: give a list of queue names, at least one")
    for queue in queues:
        check_name(queue, "queue")
    if type(concurrency) is not int or not 1 <= concurrency <= 100_000:
        raise ConfigurationError(
            f"concurrency={concurrency!r}: use a whole number from 1 to 100000"
        )
    limits: tuple[tuple[str, object, float], ...] = (
        ("lease", lease, 0.1),
        ("grace", grace, 0.0),
    )
    for name, value, least in limits:
        if not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            raise ConfigurationError(f"{name}={value!r}: use seconds, at least {least:g}")
