"""Steps and events: what jobs have done once, and what they wait for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from outlast.job import Step
from outlast.stores.news import WORK
from outlast.stores.postgres.op import Op, reading
from outlast.stores.postgres.rows import sequence
from outlast.stores.postgres.schema import READY, WAITING
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from outlast.job import Claim
    from outlast.stores.postgres.turn import Turn

__all__ = ["Stepped", "forget", "forget_events", "sent"]

T = TypeVar("T")

_RECALL = "SELECT name, digest, result, until, event FROM @steps WHERE job = $1::text"
# The row is locked: a step must not be stored while its job is on its way out. A renewal does not
# wait for it, whose transaction may last for seconds.
_REMEMBER = (
    "INSERT INTO @steps (job, name, digest, result, until, event)"
    " SELECT j.id, $1::text, $2::bytea, $3::bytea, $4::float8, $5::text FROM (SELECT id FROM @jobs"
    " WHERE seq = $6::bigint AND receipt = $7::bytea FOR KEY SHARE) AS j"
    " ON CONFLICT (job, name) DO UPDATE SET digest = excluded.digest, result = excluded.result,"
    " until = excluded.until, event = excluded.event"
)
_EMIT = (
    "INSERT INTO @events AS e (name, payload, until) VALUES ($1::text, $2::bytea, $3::float8)"
    " ON CONFLICT (name) DO UPDATE SET payload = excluded.payload, until = excluded.until"
    " WHERE e.until <= $4::float8"
)
_SENT = "SELECT name, payload FROM @events WHERE name = ANY($1::text[]) AND until > $2::float8"
_WAITERS = "SELECT DISTINCT job FROM @steps WHERE event = $1::text AND result IS NULL"
_WAKE = (
    "UPDATE @jobs SET state = 1, due = 'Infinity' WHERE id = ANY($1::text[]) AND state = 0"
    " RETURNING line"
)
_FORGET = "DELETE FROM @steps WHERE job = ANY($1::text[])"
_OLD_EVENTS = (
    "DELETE FROM @events WHERE ctid = ANY(ARRAY(SELECT ctid FROM @events WHERE until <= $1::float8"
    " ORDER BY until LIMIT $2::int FOR UPDATE SKIP LOCKED))"
)


async def remember(turn: Turn, claim: Claim, step: Step) -> bool:
    """See ``Stepping.remember``."""
    until = None if step.delay is None else turn.now + step.delay
    place = (sequence(claim.receipt), claim.receipt[:16])
    values = (step.name, step.digest, step.result, until, step.event)
    return await turn.execute(_REMEMBER, *values, *place) == 1


async def recall(turn: Turn, job: str) -> list[Step]:
    """See ``Stepping.recall``."""
    return [
        Step(
            name=name,
            digest=digest,
            result=result,
            left=None if until is None else until - turn.now,
            event=event,
        )
        for name, digest, result, until, event in await turn.fetch(_RECALL, job)
    ]


async def emit(turn: Turn, event: str, payload: bytes, keep: float) -> bool:
    """See ``Stepping.emit``."""
    await turn.lock(f"event {event}")
    if not await turn.execute(_EMIT, event, payload, turn.now + keep, turn.now):
        return False
    jobs = [job for (job,) in await turn.fetch(_WAITERS, event)]
    for (line,) in await turn.fetch(_WAKE, jobs) if jobs else ():
        turn.moved(line, WAITING, READY)
        turn.tell(WORK, ((await turn.name(line))[0],))
    return True


async def sent(turn: Turn, events: Iterable[str]) -> dict[str, bytes]:
    """Those that are there already, for those who are about to wait for them.

    Under the lock of whoever sends one: it comes before, or finds who waits.
    """
    wanted = sorted(events)
    for event in wanted:
        await turn.lock(f"event {event}")
    return dict(await turn.fetch(_SENT, wanted, turn.now)) if wanted else {}


async def find_event(turn: Turn, event: str) -> bytes | None:
    """See ``Stepping.event``."""
    return dict(await turn.fetch(_SENT, [event], turn.now)).get(event)


async def forget(turn: Turn, jobs: Sequence[str]) -> None:
    """These jobs are deleted, and their steps with them."""
    if jobs:
        await turn.execute(_FORGET, jobs)


async def forget_events(turn: Turn, limit: int) -> int:
    """Forget at most so many events that are past their time; how many."""
    return await turn.execute(_OLD_EVENTS, turn.now, limit)


class Stepped(Surface):
    """The ``Stepping`` part of the store."""

    if TYPE_CHECKING:

        async def _read(self, work: Callable[[Turn], Awaitable[T]]) -> T: ...

    async def recall(self, claim: Claim) -> Sequence[Step]:
        return await self._read(partial(recall, job=claim.job.id))

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        """``recall`` for callers without an event loop; blocks."""
        return self._hand_over(reading(partial(recall, job=claim.job.id))).result()

    async def remember(self, claim: Claim, step: Step) -> bool:
        return await self._do(Op(partial(remember, claim=claim, step=step)))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """``remember`` for callers without an event loop; blocks until it is durable."""
        return self._hand_over(Op(partial(remember, claim=claim, step=step))).result()

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        return await self._do(Op(partial(emit, event=event, payload=payload, keep=keep)))

    async def event(self, event: str) -> bytes | None:
        return await self._read(partial(find_event, event=event))
