"""Steps and events: what jobs have done once, and what they wait for. And the epoch of fences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from outlast.job import Step
from outlast.stores.news import WORK
from outlast.stores.sqlite.op import Op
from outlast.stores.sqlite.rows import dump, fetch
from outlast.stores.sqlite.schema import READY, WAITING
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Claim
    from outlast.stores.sqlite.ledger import Reads
    from outlast.stores.sqlite.moves import Moves
    from outlast.stores.sqlite.reader import Reader

__all__ = ["EPOCH", "NEXT_EPOCH", "STARTS", "Stepped", "forget", "forget_of", "fresh_epoch", "sent"]

T = TypeVar("T")

EPOCH = "(SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'epoch')"
"""Part of every fence: it is raised when the number of a job's starts may have gone back."""
STARTS = 1 << 32
"""How many starts of a job fit below the epoch in a fence."""
NEXT_EPOCH = (
    "INSERT INTO meta (name, value) VALUES ('epoch', '1') ON CONFLICT DO UPDATE"
    " SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT)"
)
_RECALL = "SELECT name, digest, result, until, event FROM steps WHERE space = ? AND job = ?"
_REMEMBER = (
    "INSERT INTO steps (space, job, name, digest, result, until, event)"
    " SELECT space, id, ?, ?, ?, ?, ? FROM jobs WHERE seq = ? AND receipt = ? AND state = 3"
    " ON CONFLICT (space, job, name) DO UPDATE SET digest = excluded.digest,"
    " result = excluded.result, until = excluded.until, event = excluded.event"
)
_EMIT = (
    "INSERT INTO events (space, name, payload, until) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (space, name) DO UPDATE SET payload = excluded.payload, until = excluded.until"
    " WHERE events.until <= ?"
)
_EVENT = "SELECT payload FROM events WHERE space = ? AND name = ? AND until > ?"
_WAITERS = (
    "SELECT j.seq, j.line FROM steps s JOIN jobs j ON j.id = s.job AND j.space = s.space"
    " WHERE s.space = ? AND s.event = ? AND s.result IS NULL AND j.state = 0"
)
_WAKE = "UPDATE jobs SET state = 1, due = 9e999 WHERE seq IN (SELECT value FROM json_each(?))"
_ANY = "SELECT EXISTS (SELECT 1 FROM steps)"
_FORGET = (
    "DELETE FROM steps WHERE (space, job) IN"
    " (SELECT space, id FROM jobs WHERE seq IN (SELECT value FROM json_each(?)))"
)
_FORGET_OF = "DELETE FROM steps WHERE space = ? AND job = ?"


def fresh_epoch(moves: Moves) -> None:
    """From here on every fence is higher than all before, whatever a job's starts are."""
    moves.connection.execute(NEXT_EPOCH)


def remember(moves: Moves, claim: Claim, step: Step) -> bool:
    """See ``Stepping.remember``."""
    until = None if step.delay is None else moves.clock.now() + step.delay
    place = (int.from_bytes(claim.receipt[16:], "big"), claim.receipt[:16])
    moves.connection.execute(
        _REMEMBER, (step.name, step.digest, step.result, until, step.event, *place)
    )
    return moves.connection.changes() == 1


def emit(moves: Moves, event: str, payload: bytes, keep: float) -> bool:
    """See ``Stepping.emit``."""
    now = moves.clock.now()
    moves.connection.execute(_EMIT, (moves.space, event, payload, now + keep, now))
    if not moves.connection.changes():
        return False
    rows = fetch(moves.connection, _WAITERS, moves.space, event)
    # Two steps of one job may wait for the same.
    lines = dict(rows)
    if lines:
        moves.connection.execute(_WAKE, (dump(list(lines)).decode(),))
        for line in lines.values():
            moves.moved(line, WAITING, READY)
        moves.tell(WORK)
    return True


def sent(moves: Moves, event: str) -> bool:
    """Whether an event is there already, for one who is about to wait for it."""
    row = (moves.space, event, moves.clock.now())
    return moves.connection.execute(_EVENT, row).get is not None


def forget(moves: Moves, seqs: Sequence[int]) -> None:
    """These jobs are about to be deleted, and their steps with them."""
    if moves.connection.execute(_ANY).get:
        moves.connection.execute(_FORGET, (dump(list(seqs)).decode(),))


def forget_of(moves: Moves, job: str) -> None:
    """This job was deleted when it was settled."""
    moves.connection.execute(_FORGET_OF, (moves.space, job))


def _recall(reads: Reads, job: str, now: float) -> list[Step]:
    rows = fetch(reads.connection, _RECALL, reads.space(), job)
    return [
        Step(
            name=name,
            digest=digest,
            result=result,
            left=None if until is None else until - now,
            event=event,
        )
        for name, digest, result, until, event in rows
    ]


def _event(reads: Reads, event: str, now: float) -> bytes | None:
    found: bytes | None = reads.connection.execute(_EVENT, (reads.space(), event, now)).get
    return found


class Stepped(Surface):
    """The ``Stepping`` part of the store."""

    if TYPE_CHECKING:

        async def _read(self, run: Callable[[Reads], T]) -> T: ...
        def _reading(self) -> Reader: ...

    async def recall(self, claim: Claim) -> Sequence[Step]:
        return await self._read(partial(_recall, job=claim.job.id, now=self.clock.now()))

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        return self._reading().now(partial(_recall, job=claim.job.id, now=self.clock.now()))

    async def remember(self, claim: Claim, step: Step) -> bool:
        return await self._do(Op(partial(remember, claim=claim, step=step), synced=True))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        return self._hand_over(Op(partial(remember, claim=claim, step=step), synced=True)).result()

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        run = partial(emit, event=event, payload=payload, keep=keep)
        return await self._do(Op(run, synced=True))

    async def event(self, event: str) -> bytes | None:
        return await self._read(partial(_event, event=event, now=self.clock.now()))
