"""Settling: what was decided about claims, applied where the receipt still holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.job import Failure, Lost
from outlast.stores.news import ENDED, WORK
from outlast.stores.postgres.adds import add_following
from outlast.stores.postgres.ends import MOVED, free_keys, free_lanes
from outlast.stores.postgres.faults import Careful
from outlast.stores.postgres.rows import dump, plus, sequence
from outlast.stores.postgres.schema import CANCELLED, DEAD, DONE, READY, RUNNING, WAITING
from outlast.stores.postgres.steps import forget, sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job, Verdict
    from outlast.stores.postgres.turn import Turn

__all__ = ["lines_of", "settle"]

# Rows are found by the list of their numbers, and joined with what is to be done to them after.
_OURS = " WHERE j.seq = ANY($1::bigint[]) AND j.seq = v.place AND j.receipt = v.token"
_COLUMNS = MOVED.format(attempt="attempt", failures="failures", crashes="crashes")
_DONE = (
    "WITH d AS (DELETE FROM @jobs j USING unnest($1::bigint[], $2::bytea[], $3::bytea[],"
    " $4::float8[]) AS v(place, token, outcome, gone)"
    + _OURS
    + " RETURNING j.*, v.outcome, v.gone)"
    f" INSERT INTO @ended ({_COLUMNS}, state, finished_at, result, gone_at)"
    f" SELECT {_COLUMNS}, 4::smallint, $5::float8, outcome, gone FROM d"
)
_ALL_DONE = (
    "WITH d AS (DELETE FROM @jobs WHERE seq = ANY($1::bigint[]) AND receipt = $2::bytea"
    f" RETURNING *) INSERT INTO @ended ({_COLUMNS}, state, finished_at, result, gone_at)"
    f" SELECT {_COLUMNS}, 4::smallint, $5::float8, $3::bytea, $4::float8 FROM d"
)
"""The same for jobs of one claim that have all ended alike: there is nothing to be joined."""
ENOUGH = 100
"""Jobs for which a statement of their own is worth the way to the server."""
_GONE = "DELETE FROM @jobs j USING unnest($1::bigint[], $2::bytea[]) AS v(place, token)" + _OURS
_BACK = (
    "UPDATE @jobs j SET state = v.state, due = CASE WHEN v.delay > 0 THEN $9::float8 + v.delay"
    " ELSE j.due END, failure = coalesce(v.failure, j.failure),"
    f" failures = {plus('j.failures', 'v.failed')}, crashes = {plus('j.crashes', 'v.crashed')},"
    " attempt = j.attempt - v.unstarted,"
    " suspect = j.suspect AND v.unstarted = 1, receipt = NULL, lease = NULL, worker = NULL"
    " FROM unnest($1::bigint[], $2::bytea[], $3::smallint[], $4::float8[], $5::text[], $6::int[],"
    " $7::int[], $8::int[]) AS v(place, token, state, delay, failure, failed, crashed, unstarted)"
    + _OURS
)
_END = (
    "WITH d AS (DELETE FROM @jobs j USING unnest($1::bigint[], $2::bytea[], $3::smallint[],"
    " $4::text[], $5::int[], $6::int[], $7::int[], $8::float8[])"
    " AS v(place, token, final, why, failed, crashed, unstarted, gone)"
    + _OURS
    + " RETURNING j.*, v.*)"
    f" INSERT INTO @ended ({_COLUMNS}, state, failure, finished_at, gone_at) SELECT "
    + MOVED.format(
        attempt="attempt - unstarted",
        failures=plus("failures", "failed"),
        crashes=plus("crashes", "crashed"),
    )
    + ", final, coalesce(why, failure), $9::float8, gone FROM d"
)
_LOCK = (
    "SELECT seq, receipt, cancel FROM @jobs WHERE seq = ANY($1::bigint[]) ORDER BY seq FOR UPDATE"
)


async def settle(turn: Turn, verdicts: Sequence[Verdict], *, careful: bool) -> list[Lost]:
    """See ``Store.settle``. Raises ``Careful`` if not all hold, unless told to look at each."""
    lost: list[Lost] = []
    if careful:
        verdicts = await _held(turn, verdicts, lost)
    batch = _Batch(turn)
    for verdict in verdicts:
        batch.sort(verdict)
    await batch.write()
    return lost


def lines_of(verdicts: Sequence[Verdict]) -> set[tuple[str, str | None]]:
    """The lines that must exist for these verdicts."""
    found = {(v.claim.job.queue, v.claim.job.task) for v in verdicts}
    return found | {(job.queue, job.task) for v in verdicts for job in v.then}


async def _held(turn: Turn, verdicts: Sequence[Verdict], lost: list[Lost]) -> list[Verdict]:
    """Look at each first: which claims are still ours."""
    numbers = sorted({sequence(v.claim.receipt) for v in verdicts})
    tokens = {seq: receipt for seq, receipt, _ in await turn.fetch(_LOCK, numbers)}
    held: dict[int, Verdict] = {}
    for verdict in verdicts:
        receipt = verdict.claim.receipt
        seq = sequence(receipt)
        if tokens.get(seq) == receipt[:16] and seq not in held:
            held[seq] = verdict
        else:
            lost.append(Lost(verdict.claim, "lost"))
    return list(held.values())


class _Batch:
    """Verdicts sorted by what has to be written for them: one statement for each kind."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.done: list[tuple[Any, ...]] = []
        self.gone: list[tuple[Any, ...]] = []
        self.forgotten: list[str] = []
        self.back: list[tuple[Any, ...]] = []
        self.backs: dict[int, Verdict] = {}
        self.ended: list[tuple[Any, ...]] = []
        self.keyed: list[tuple[str, str, str, float]] = []
        self.lanes: set[str] = set()
        self.then: list[Job] = []

    def sort(self, verdict: Verdict) -> None:
        job, receipt = verdict.claim.job, verdict.claim.receipt
        seq, token = sequence(receipt), receipt[:16]
        self.then.extend(verdict.then)
        if verdict.kind == "done":
            if job.keep == 0:
                self._drop(job, seq, token)
            else:
                gone_at = None if job.keep is None else self.turn.now + job.keep
                self.done.append((seq, token, verdict.result, gone_at))
            self._leave(job, DONE)
        elif verdict.kind in ("dead", "cancelled"):
            self._end(verdict, seq, token)
        else:
            if seq in self.backs:
                raise Careful
            self.backs[seq] = verdict

    def _leave(self, job: Job, state: int) -> None:
        turn = self.turn
        line = turn.lines.ids[job.queue, job.task]
        turn.count(line, RUNNING, -1)
        if job.keep != 0 or state == DEAD:
            turn.count(line, state, 1)
        if job.key is not None:
            self.keyed.append((job.task or "", job.key, job.id, turn.now + job.keep_key))
        if job.lane is not None:
            self.lanes.add(job.lane)

    def _drop(self, job: Job, seq: int, token: bytes) -> None:
        self.gone.append((seq, token))
        if job.task is not None:  # the items of queues have no steps
            self.forgotten.append(job.id)

    def _end(self, verdict: Verdict, seq: int, token: bytes) -> None:
        job = verdict.claim.job
        state = DEAD if verdict.kind == "dead" else CANCELLED
        self._leave(job, state)
        if state == CANCELLED and job.keep == 0:
            self._drop(job, seq, token)
            return
        keep = None if state == DEAD else job.keep
        # What would have come back but for a cancel request was cancelled, whatever it did last.
        failure = verdict.failure if verdict.kind in ("dead", "cancelled") else None
        self.ended.append(
            (
                seq,
                token,
                state,
                dump(failure or Failure(kind="cancelled")).decode(),
                *_counted(verdict),
                int(not verdict.started),
                None if keep is None else self.turn.now + keep,
            )
        )

    def _give_back(self, verdict: Verdict, seq: int, token: bytes, delay: float) -> None:
        job, turn = verdict.claim.job, self.turn
        state = WAITING if delay > 0 else READY
        turn.moved(turn.lines.ids[job.queue, job.task], RUNNING, state)
        turn.tell(WORK, (job.queue,))
        if job.lane is not None and not verdict.started:
            self.lanes.add(job.lane)
        why = None if verdict.failure is None else dump(verdict.failure).decode()
        unstarted = int(not verdict.started)
        self.back.append((seq, token, state, delay, why, *_counted(verdict), unstarted))

    async def write(self) -> None:
        turn, now = self.turn, self.turn.now
        if self.backs:
            await self._sort_backs()
        for rows, text, more in (
            (await self._various(), _DONE, (now,)),
            (self.gone, _GONE, ()),
            (self.back, _BACK, (now,)),
            (self.ended, _END, (now,)),
        ):
            if rows:
                # In order, so that two who want the same rows don't wait for each other.
                rows.sort(key=lambda row: row[0])
                columns = [list(column) for column in zip(*rows, strict=True)]
                if await turn.execute(text, *columns, *more) != len(rows):
                    raise Careful
        if self.done or self.gone or self.ended:
            turn.tell(ENDED)
        await forget(turn, self.forgotten)
        await free_keys(turn, self.keyed)
        if self.lanes:
            await free_lanes(turn, self.lanes)
        if self.then:
            await add_following(turn, self.then)

    async def _various(self) -> list[tuple[Any, ...]]:
        """Those done that are left when the alike ones are written, if there are enough of them."""
        alike: dict[Any, list[int]] = {}
        for place, *how in self.done:
            alike.setdefault(tuple(how), []).append(place)
        if len(alike) > 1 and len(alike) * ENOUGH > len(self.done):
            return self.done
        for what, places in alike.items():
            done = await self.turn.execute(_ALL_DONE, sorted(places), *what, self.turn.now)
            if done != len(places):
                raise Careful
        return []

    async def _sort_backs(self) -> None:
        """What someone asked to cancel meanwhile doesn't come back."""
        awaited = {verdict.event for verdict in self.backs.values() if verdict.event is not None}
        there = await sent(self.turn, awaited)
        found = await self.turn.fetch(_LOCK, sorted(self.backs))
        asked = {seq for seq, _, cancel in found if cancel}
        for seq, verdict in self.backs.items():
            token = verdict.claim.receipt[:16]
            if seq in asked:
                self._end(verdict, seq, token)
            else:
                delay = 0.0 if verdict.event in there else verdict.delay
                self._give_back(verdict, seq, token, delay)


def _counted(verdict: Verdict) -> tuple[int, int]:
    """How many failures and crashes the run adds."""
    counts = verdict.started and verdict.kind in ("dead", "retry")
    crashed = verdict.failure is not None and verdict.failure.kind == "crash"
    return int(counts and not crashed), int(counts and crashed)
