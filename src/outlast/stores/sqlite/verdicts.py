"""Settling: what was decided about claims, applied where the receipt still holds."""

from __future__ import annotations

from struct import unpack
from typing import TYPE_CHECKING, Any

from outlast.job import Failure, Lost
from outlast.stores.news import ENDED, WORK
from outlast.stores.sqlite.claims import sequence
from outlast.stores.sqlite.moves import Careful
from outlast.stores.sqlite.rows import dump
from outlast.stores.sqlite.schema import CANCELLED, DEAD, DONE, READY, RUNNING, WAITING
from outlast.stores.sqlite.steps import forget_of, sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job, Verdict
    from outlast.stores.sqlite.moves import Moves

__all__ = ["settle"]

# The unary plus: the planner must look rows up by what is listed, never walk the whole table.
_OURS = " AND jobs.receipt = +v.r AND jobs.state = 3"
_DONE = "WITH v (s, r, x, g) AS (VALUES"
_IS_DONE = (
    ") UPDATE jobs SET state = 4, result = v.x, failure = NULL, finished_at = ?, gone_at = v.g,"
    " receipt = NULL, lease = NULL FROM v WHERE jobs.seq = +v.s" + _OURS
)
_ALL_DONE = (
    "UPDATE jobs SET state = 4, result = ?, failure = NULL, finished_at = ?, gone_at = ?,"
    " receipt = NULL, lease = NULL WHERE "
)
_ALL_GONE = "DELETE FROM jobs WHERE "
_IF_OURS = "+receipt = ? AND +state = 3 AND seq "
_LISTED = "IN (SELECT value FROM json_each(?))"
_IN_A_ROW = "BETWEEN ? AND ?"
_GONE = "WITH v (s, r) AS (VALUES"
_IS_GONE = (
    ") DELETE FROM jobs WHERE seq IN (SELECT v.s FROM v JOIN jobs j ON j.seq = +v.s"
    " AND j.receipt = +v.r AND j.state = 3)"
)
_BACK = "WITH v (s, r, state, delay, failure, failed, crashed, unstarted) AS (VALUES"
_IS_BACK = (
    ") UPDATE jobs SET state = v.state, due = iif(v.delay > 0, ? + v.delay, due),"
    " failure = ifnull(v.failure, jobs.failure), failures = failures + v.failed,"
    " crashes = crashes + v.crashed, attempt = attempt - v.unstarted,"
    " suspect = iif(v.unstarted, suspect, 0), receipt = NULL, lease = NULL,"
    " worker = NULL FROM v WHERE jobs.seq = +v.s" + _OURS
)
_END = "WITH v (s, r, state, failure, failed, crashed, unstarted, g) AS (VALUES"
_IS_ENDED = (
    ") UPDATE jobs SET state = v.state, failure = ifnull(v.failure, jobs.failure),"
    " failures = failures + v.failed, crashes = crashes + v.crashed,"
    " attempt = attempt - v.unstarted, finished_at = ?,"
    " gone_at = v.g, receipt = NULL, lease = NULL FROM v WHERE jobs.seq = +v.s" + _OURS
)
_TO_CANCEL = (
    "SELECT seq FROM jobs WHERE cancel = 1 AND state = 3"
    " AND seq IN (SELECT value FROM json_each(?))"
)
_HOLDS = "SELECT 1 FROM jobs WHERE seq = ? AND receipt = ? AND state = 3"


_RECEIPT = 24
"""Bytes of a receipt: a token, and the number of a row."""
_MANY = 8
"""Jobs of one claim that ended alike, from which on one list of numbers is the faster way."""


def settle(moves: Moves, verdicts: Sequence[Verdict]) -> list[Lost]:
    """See ``Store.settle``."""
    lost: list[Lost] = []
    if moves.careful:
        verdicts = _held(moves, verdicts, lost)
    batch = _Batch(moves)
    for verdict in batch.sort_usual(verdicts):
        batch.sort(verdict)
    batch.write()
    return lost


def _held(moves: Moves, verdicts: Sequence[Verdict], lost: list[Lost]) -> list[Verdict]:
    """Look at each first: which claims are still ours."""
    held: dict[int, Verdict] = {}
    for verdict in verdicts:
        receipt = verdict.claim.receipt
        seq = sequence(receipt)
        found = moves.connection.execute(_HOLDS, (seq, receipt[:16])).fetchall()
        if found and seq not in held:
            held[seq] = verdict
        else:
            lost.append(Lost(verdict.claim, "lost"))
    return list(held.values())


class _Batch:
    """Verdicts sorted by what has to be written for them: one statement for each kind."""

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        self.now = moves.clock.now()
        self.alike: dict[tuple[bytes, bytes | None, float | None], list[int]] = {}
        self.done: list[tuple[Any, ...]] = []
        self.left: dict[bytes, list[int]] = {}
        self.gone: list[tuple[Any, ...]] = []
        self.back: list[tuple[Any, ...]] = []
        self.backs: dict[int, Verdict] = {}
        self.ended: list[tuple[Any, ...]] = []
        self.keyed: list[tuple[str, str, str, float]] = []
        self.lanes: list[str] = []
        self.then: list[Job] = []
        self.counts: dict[tuple[str, str | None], int] = {}
        self.leaving: dict[tuple[str, str | None], int] = {}

    def sort_usual(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """What is done and leaves nothing else to do, run by run of what ended alike; the others.

        Nearly all of what a worker or a queue brings was claimed together and ended alike.
        """
        rest: list[Verdict] = []
        runs: list[tuple[Job, bytes, bytes | None, list[bytes]]] = []
        queue, task, keep, result, token = "", None, None, None, b""
        same: list[bytes] = []
        for verdict in verdicts:
            claim = verdict.claim
            job, receipt = claim.job, claim.receipt
            if (
                verdict.kind != "done"
                or job.key is not None
                or job.lane is not None
                or verdict.then
                or (job.keep == 0 and job.task is not None)  # it may have left steps
                or len(receipt) != _RECEIPT  # none of ours
            ):
                rest.append(verdict)
                continue
            if (
                not same
                or job.queue != queue
                or job.task != task
                or job.keep != keep
                or verdict.result != result
                or not receipt.startswith(token)
            ):
                queue, task, keep, result = job.queue, job.task, job.keep, verdict.result
                token, same = receipt[:16], []
                runs.append((job, token, result, same))
            same.append(receipt)
        for job, token, result, same in runs:
            # Two halves of a token and the number of a row, each.
            seqs = unpack(f">{3 * len(same)}Q", b"".join(same))[2::3]
            self._list_done(job, token, result).extend(seqs)
            counts = self.leaving if job.keep == 0 else self.counts
            counts[job.queue, job.task] = counts.get((job.queue, job.task), 0) + len(same)
        return rest

    def _list_done(self, job: Job, token: bytes, result: bytes | None) -> list[int]:
        """The list of rows that end as this one, which is done, does."""
        keep = job.keep
        if keep == 0:
            return self.left.setdefault(token, [])
        kind = (token, result, None if keep is None else self.now + keep)
        return self.alike.setdefault(kind, [])

    def sort(self, verdict: Verdict) -> None:
        """One that is not usual."""
        claim = verdict.claim
        job, receipt = claim.job, claim.receipt
        seq, token = sequence(receipt), receipt[:16]
        if verdict.then:
            self.then.extend(verdict.then)
        if verdict.kind == "done":
            if job.keep == 0 and job.task is not None:
                forget_of(self.moves, job.id)
            self._list_done(job, token, verdict.result).append(seq)
            self._leave(job, DONE)
        elif verdict.kind in ("dead", "cancelled"):
            self._end(verdict, seq, token)
        else:
            if seq in self.backs:
                raise Careful
            self.backs[seq] = verdict

    def _leave(self, job: Job, state: int) -> None:
        moves = self.moves
        line = moves.line(job.queue, job.task)
        if job.keep == 0 and state != DEAD:
            moves.count(line, RUNNING, -1)
        else:
            moves.moved(line, RUNNING, state)
        if job.key is not None:
            self.keyed.append((job.task or "", job.key, job.id, self.now + job.keep_key))
        if job.lane is not None:
            self.lanes.append(job.lane)

    def _end(self, verdict: Verdict, seq: int, token: bytes) -> None:
        job = verdict.claim.job
        state = DEAD if verdict.kind == "dead" else CANCELLED
        self._leave(job, state)
        if state == CANCELLED and job.keep == 0:
            self.left.setdefault(token, []).append(seq)
            forget_of(self.moves, job.id)
            return
        keep = None if state == DEAD else job.keep
        # What would have come back but for a cancel request was cancelled, whatever it did last.
        failure = verdict.failure if verdict.kind in ("dead", "cancelled") else None
        failure = failure or Failure(kind="cancelled")
        failed, crashed = _counted(verdict)
        self.ended.append(
            (
                seq,
                token,
                state,
                dump(failure).decode(),
                failed,
                crashed,
                int(not verdict.started),
                None if keep is None else self.now + keep,
            )
        )

    def _give_back(self, verdict: Verdict, seq: int) -> None:
        job, moves = verdict.claim.job, self.moves
        delay = verdict.delay
        if verdict.event is not None and sent(moves, verdict.event):
            delay = 0.0
        state = WAITING if delay > 0 else READY
        moves.moved(moves.line(job.queue, job.task), RUNNING, state)
        if job.lane is not None and not verdict.started:
            self.lanes.append(job.lane)
        self.back.append(
            (
                seq,
                verdict.claim.receipt[:16],
                state,
                delay,
                None if verdict.failure is None else dump(verdict.failure).decode(),
                *_counted(verdict),
                int(not verdict.started),
            )
        )

    def write(self) -> None:
        moves, now = self.moves, (self.now,)
        self._count()
        if self.backs:
            self._sort_backs()
        missed = self._write_alike()
        for rows, head, tail, more in (
            (self.done, _DONE, _IS_DONE, now),
            (self.gone, _GONE, _IS_GONE, ()),
            (self.back, _BACK, _IS_BACK, now),
            (self.ended, _END, _IS_ENDED, now),
        ):
            if rows:
                missed += len(rows) - moves.values(head, tail, rows, more)
        if missed:
            raise Careful
        if self.alike or self.left or self.ended:
            moves.tell(ENDED)
        if self.back:
            moves.tell(WORK)
        moves.free_keys(self.keyed)
        if self.lanes:
            moves.free_lanes(self.lanes)
        if self.then:
            moves.add_following(self.then)

    def _count(self) -> None:
        """What ended in the usual way, line by line."""
        moves = self.moves
        for (queue, task), number in self.counts.items():
            moves.moved(moves.line(queue, task), RUNNING, DONE, number)
        for (queue, task), number in self.leaving.items():
            moves.count(moves.line(queue, task), RUNNING, -number)

    def _write_alike(self) -> int:
        """One statement for all that end alike, if they are many; how many are not held any more.

        The few are left for those statements that take any.
        """
        missed = 0
        for (token, result, gone_at), seqs in self.alike.items():
            if len(seqs) < _MANY:
                self.done += [(seq, token, result, gone_at) for seq in seqs]
            else:
                missed += self._missed(_ALL_DONE, seqs, token, result, self.now, gone_at)
        for token, seqs in self.left.items():
            if len(seqs) < _MANY:
                self.gone += [(seq, token) for seq in seqs]
            else:
                missed += self._missed(_ALL_GONE, seqs, token)
        return missed

    def _missed(self, text: str, seqs: Sequence[int], token: bytes, *values: Any) -> int:
        # What was claimed together mostly ends together, and then is found without a list.
        low, high = min(seqs), max(seqs)
        if high - low + 1 == len(seqs) == len(set(seqs)):
            self.moves.connection.execute(text + _IF_OURS + _IN_A_ROW, (*values, token, low, high))
        else:
            listed = dump(seqs).decode()
            self.moves.connection.execute(text + _IF_OURS + _LISTED, (*values, token, listed))
        return len(seqs) - self.moves.connection.changes()

    def _sort_backs(self) -> None:
        """What someone asked to cancel meanwhile doesn't come back."""
        wanted = dump(list(self.backs)).decode()
        cancel = {seq for (seq,) in self.moves.connection.execute(_TO_CANCEL, (wanted,))}
        for seq, verdict in self.backs.items():
            if seq in cancel:
                self._end(verdict, seq, verdict.claim.receipt[:16])
            else:
                self._give_back(verdict, seq)


def _counted(verdict: Verdict) -> tuple[int, int]:
    """How many failures and crashes the run adds."""
    if not verdict.started or verdict.kind not in ("dead", "retry"):
        return 0, 0
    if verdict.failure is not None and verdict.failure.kind == "crash":
        return 0, 1
    return 1, 0
