"""What a process has taken out of the store and not acknowledged; and who dies with it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from outlast import lifeline
from outlast.contrib.kombu.calls import finish
from outlast.errors import StoreClosed, StoreError
from outlast.job import DAY, Failure, dead, done, give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from outlast.contrib.kombu.shared import Shared
    from outlast.job import Claim, Verdict

__all__ = ["LOCAL", "Hands"]

_log = logging.getLogger(__name__)

LOCAL = "sqlite:"
"""Stores of this machine, whose processes all see at once who is dead. Elsewhere a lease tells."""
LEASE = 30.0
"""Seconds for which claims hold where nobody can see at once that a process is dead."""
SCAN = 0.25
"""Seconds between two looks for dead processes of this machine."""
RECOVER, TIDY, PRUNE = 1.0, 2.5, 5.0
BITE, RECOVER_BITE = 200, 500
AT_ONCE = 1.0
"""Seconds for which one round of pruning goes on."""
LINGER = 0.01
"""Seconds that an ack waits for others to be stored with it."""
BATCH = 2000
"""Verdicts in one write."""
PAUSES = (0.1, 1.0, 5.0)
"""Seconds between tries while the store can't be reached; the last one from then on."""
SLOTS = 2048
TASK = (None,)
"""Messages are items of queues: jobs without a task of ours."""


class Hands:
    """The claims of one process. Any of its threads may take, settle and give back.

    What was delivered is marked in the process's life sign, so that after a death it comes back as
    redelivered, and what had only been claimed as if it had never left the store.
    """

    def __init__(self, shared: Shared) -> None:
        self._store = shared.store
        self._clock = shared.clock
        self._chance = shared.chance
        self._places = shared.places
        self._leased = not shared.store.url.startswith(LOCAL)
        self._lease = LEASE if self._leased else DAY
        self._lock = threading.Lock()
        self._held: dict[str, Claim] = {}
        self._marked: dict[str, bytes] = {}
        """The receipt under which a message was marked as delivered."""
        self._kept: set[str] = set()
        self._flying: set[Future[Sequence[Claim]]] = set()
        self._verdicts: deque[Verdict] = deque()
        self._settling = threading.Lock()
        self._settle_now = threading.Event()
        self._closing = threading.Event()
        self._lifeline: lifeline.Lifeline | None = None
        self._worker = f"kombu-{self._chance.uuid7()}"
        self._threads: list[threading.Thread] = []
        self._keep_at: dict[str, float] = {}
        self._consumed: dict[str, int] = {}
        self._watched: set[Callable[[], None]] = set()

    # -- taking

    def claim(self, queues: Sequence[str], limit: int) -> Future[Sequence[Claim]]:
        """Begin to claim; the first one begins this process's life sign."""
        if not self._threads:
            self._start()
        with self._lock:
            if self._closing.is_set():
                raise StoreClosed("the connection is closed")
            future: Future[Sequence[Claim]] = self._store.claim_soon(
                queues, TASK, limit, self._lease, self._worker
            )
            self._flying.add(future)
        return future

    def take(self, future: Future[Sequence[Claim]]) -> Sequence[Claim]:
        """What a claim has brought, in our hands from now on. Whoever began it has to take it."""
        try:
            claims = future.result()
        finally:
            with self._lock:
                self._flying.discard(future)
        with self._lock:
            for claim in claims:
                self._held[claim.receipt.hex()] = claim
        return claims

    def deliver(self, claim: Claim) -> str:
        """Somebody is about to be given this one; its delivery tag."""
        if self._lifeline is not None:
            with self._lock:
                self._marked[claim.job.id] = claim.receipt
                self._lifeline.mark_started(claim.job.id, alone=len(self._held) == 1)
        return claim.receipt.hex()

    # -- settling

    def done(self, tag: str) -> None:
        """It was acknowledged: settled soon, with whatever else is."""
        self._decide(tag, done)

    def give_back(self, tag: str, *, started: bool = True) -> None:
        """It may be delivered again, to anybody."""
        self._decide(tag, partial(give_back, started=started))

    def keep(self, tag: str) -> None:
        """It was delivered on a channel that is closed, and will be settled nevertheless."""
        with self._lock:
            if tag in self._held:
                self._kept.add(tag)

    @property
    def goes_on(self) -> bool:
        """Whether something is still to be settled, though no channel is open."""
        try:
            self.flush()
        except StoreError as error:
            _log.warning("%d messages can't be settled yet: %s", len(self._verdicts), error)
        return bool(self._kept or self._verdicts)

    def bury(self, tag: str, why: str, *, kind: str = "error") -> None:
        """It was rejected: kept among the dead, for somebody to look at."""
        self._decide(tag, partial(dead, failure=Failure(kind=kind, message=why)))

    def _decide(self, tag: str, verdict: Callable[[Claim], Verdict]) -> None:
        with self._lock:
            claim = self._held.pop(tag, None)
            self._kept.discard(tag)
            if claim is None:
                return  # settled already, or the parent's, in a forked child
            self._verdicts.append(verdict(claim))
        self._settle_now.set()

    def flush(self) -> None:
        """Return when all that was decided is durable. Raises what keeps it from being so."""
        while True:
            with self._settling:  # what the thread has taken out already is not durable yet
                left = bool(self._verdicts)
            if not left:
                return
            self._settle()

    def _settle(self) -> None:
        with self._settling:
            batch: list[Verdict] = []
            while self._verdicts and len(batch) < BATCH:
                batch.append(self._verdicts.popleft())
            if not batch:
                return
            try:
                lost = self._store.settle_now(batch)
            except BaseException:
                # Repeating it is harmless.
                self._verdicts.extendleft(reversed(batch))
                raise
            if self._lifeline is not None:
                with self._lock:
                    for claim in (verdict.claim for verdict in batch):
                        # What was given back may be with us again by now, and delivered.
                        if self._marked.get(claim.job.id) == claim.receipt:
                            del self._marked[claim.job.id]
                            self._lifeline.mark_settled(claim.job.id)
        for each in lost:
            _log.warning(
                "message %s of queue %s was not ours any more when it was acknowledged: it may be"
                " handled twice", each.claim.job.id, each.claim.job.queue,
            )  # fmt: skip

    # -- threads

    def _start(self) -> None:
        with self._lock:
            if self._threads:
                return
            if self._store.lifelines is not None:
                line = lifeline.Lifeline(self._store.lifelines, self._worker, SLOTS)
                line.hold()
                self._lifeline = line
            self._threads = [
                threading.Thread(target=self._run_settling, name="outlast-settle", daemon=True),
                threading.Thread(target=self._run_keeping, name="outlast-keep", daemon=True),
            ]
        for thread in self._threads:
            thread.start()

    def _run_settling(self) -> None:
        failures = 0
        while True:
            self._settle_now.wait()
            # Many acks in one commit: who runs tasks waits for none of them.
            if self._closing.wait(LINGER):
                return
            self._settle_now.clear()
            if self._closing.is_set():
                return  # what was just cleared may have been its word, and none comes after it
            try:
                while self._verdicts:
                    self._settle()
                failures = 0
            except Exception as error:
                # Whatever it is: a thread that ended would leave all that is acknowledged unstored.
                pause = PAUSES[min(failures, len(PAUSES) - 1)]
                failures += 1
                unknown = None if isinstance(error, StoreError) else error
                _log.warning(
                    "%d messages can't be settled yet: %s", len(self._verdicts), error,
                    exc_info=unknown,
                )  # fmt: skip
                self._settle_now.set()
                self._closing.wait(pause)

    def _run_keeping(self) -> None:
        duties = [(self._bury, SCAN), (self._let_go, SCAN)]
        duties += [(self._prune, PRUNE), (self._tidy, TIDY)]
        if self._leased:
            duties.append((self._recover, RECOVER))
        duties.append((self._renew, self._lease / 3))
        due = dict.fromkeys((duty for duty, _ in duties), 0.0)
        while not self._closing.wait(SCAN):
            for duty, pause in duties:
                if self._clock.monotonic() >= due[duty]:
                    try:
                        duty()
                    except StoreError as error:
                        # Whoever consumes hears of it as well, and says what to do.
                        _log.warning("upkeep has to wait: %s", error)
                    except Exception:
                        # Such as a disk that fails. The other duties are to be done nevertheless.
                        _log.exception("upkeep has to wait")
                    due[duty] = self._clock.monotonic() + pause

    def _bury(self) -> None:
        folder = self._store.lifelines
        if folder is None:
            return
        for worker, death in lifeline.dead(folder):
            count = finish(self._store.recover_worker(worker, death))
            lifeline.forget(folder, worker)
            level = logging.WARNING if count else logging.INFO
            _log.log(level, "worker %s died: %d of its messages are put back", worker, count)

    def _recover(self) -> None:
        finish(self._store.recover(RECOVER_BITE))

    def _prune(self) -> None:
        # Not all at once, if it is much: leases have to be renewed meanwhile.
        until = self._clock.monotonic() + AT_ONCE
        while finish(self._store.prune(BITE)) >= BITE:
            if self._closing.is_set() or self._clock.monotonic() >= until:
                return

    def _renew(self) -> None:
        with self._lock:
            claims = list(self._held.values())
        for at in range(0, len(claims), RECOVER_BITE):
            some = claims[at : at + RECOVER_BITE]
            for lost in finish(self._store.renew(some, self._lease)):
                if lost.reason == "lost":
                    _log.warning("message %s is another's by now", lost.claim.job.id)

    def _tidy(self) -> None:
        """Queues that end when nobody uses them: ours are used, and those of the dead end."""
        with self._lock:
            used = list(self._consumed)
        self._places.keep(used)
        for queue in self._places.ended():
            finish(self._places.purge(self._store, queue))

    def _let_go(self) -> None:
        with self._lock:
            watched = list(self._watched)
        for let_go in watched:
            let_go()

    def watch(self, let_go: Callable[[], None]) -> None:
        """Call this now and then, to give back what was claimed ahead and isn't wanted."""
        with self._lock:
            self._watched.add(let_go)

    def watch_no_more(self, let_go: Callable[[], None]) -> None:
        with self._lock:
            self._watched.discard(let_go)

    # -- which queues are consumed here

    def consumes(self, queue: str) -> None:
        with self._lock:
            self._consumed[queue] = self._consumed.get(queue, 0) + 1

    def consumes_no_more(self, queue: str) -> None:
        with self._lock:
            left = self._consumed.get(queue, 0) - 1
            if left > 0:
                self._consumed[queue] = left
            else:
                self._consumed.pop(queue, None)

    # -- the end

    def close(self) -> None:
        """Settle what is decided, give back the rest."""
        with self._lock:
            self._closing.set()
        self._settle_now.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        for future in list(self._flying):
            with contextlib.suppress(StoreError):
                self.take(future)
        with self._lock:
            left, self._held = list(self._held.values()), {}
            self._verdicts.extend(give_back(claim) for claim in left)
        line, self._lifeline = self._lifeline, None
        try:
            self.flush()
        except BaseException:
            if line is not None:
                line.abandon()
            raise
        if line is not None:
            line.release()
