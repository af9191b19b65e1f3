"""Claims on their way to the writer: made at once, or as soon as there is something to claim."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from outlast.errors import StoreError
from outlast.stores.news import WORK
from outlast.stores.sqlite.claims import claim, start
from outlast.stores.sqlite.ledger import Reads
from outlast.stores.sqlite.op import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.job import Claim, Job
    from outlast.stores.news import News
    from outlast.stores.sqlite.moves import Moves
    from outlast.stores.sqlite.reader import Reader
    from outlast.stores.sqlite.writer import Writer

__all__ = ["claim_op", "wait_for"]


def claim_op(
    news: News,
    chance: Chance,
    queues: Sequence[str],
    tasks: Sequence[str | None],
    limit: int,
    lease: float,
    worker: str,
    newest: bool = False,
    *,
    patient: bool = False,
) -> Op[Sequence[Claim]]:
    """One claim. A patient one waits in the writer until there is news of these queues."""
    seen: Mapping[str, int] = {}
    short = False

    def run(moves: Moves) -> Sequence[Claim]:
        nonlocal seen, short
        seen = news.count(WORK, queues)
        found = claim(moves, chance, queues, tasks, limit, lease, worker, newest)
        short = len(found) < limit
        if short and not patient:
            news.look(WORK, seen)
        return found

    def started(
        moves: Moves, model: Job, ids: Sequence[str], payloads: Sequence[bytes]
    ) -> Sequence[Claim] | None:
        nonlocal seen, short
        seen, short = news.count(WORK, queues), len(ids) < limit
        return start(moves, chance, model, ids, payloads, queues, tasks, limit, lease, worker)

    def landed(told: int) -> None:
        if short:
            # What the other calls of its transaction have brought, it has seen.
            news.look(WORK, seen, more=bool(told & WORK))

    op = Op(run, False, limit)
    if patient:
        op.idle, op.landed = partial(news.is_seen, WORK, queues), landed
        op.start = started
    return op


async def wait_for(
    op: Op[Sequence[Claim]],
    timeout: float,
    enough: asyncio.Future[None],
    writer: Writer,
    reader: Reader,
    clock: Clock,
    undo: Callable[[Sequence[Claim]], None],
) -> Sequence[Claim]:
    """The answer of a patient claim. Cancelled, what was claimed goes back."""
    reply: asyncio.Future[Sequence[Claim]] = asyncio.get_running_loop().create_future()

    async def alarm() -> None:
        """Nobody brings news of what was delayed and is due now."""
        try:
            due = await reader.do(Reads.next_due)
        except StoreError as error:
            op.undo = undo
            if not reply.done():
                reply.set_exception(error)
            return
        await clock.sleep(timeout if due is None else max(0.0, min(timeout, due - clock.now())))
        writer.rouse()

    def look_now(_: object) -> None:
        writer.rouse()

    waits = op.idle is not None and op.idle()
    if not waits:
        op.idle = _never  # though others see the news first: it has no alarm to end its wait
    op.reply = reply
    writer.submit(op)
    enough.add_done_callback(look_now)
    alarmed = asyncio.ensure_future(alarm()) if waits else None
    try:
        return await reply
    except asyncio.CancelledError:
        op.orphan(undo)
        raise
    finally:
        enough.remove_done_callback(look_now)
        if alarmed is not None:
            alarmed.cancel()


def _never() -> bool:
    return False
