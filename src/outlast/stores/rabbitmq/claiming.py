"""Claims what was delivered; buries what may not run, and gives back what nobody here wants."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from outlast.job import Claim
from outlast.stores.news import WORK
from outlast.stores.rabbitmq.held import claimed
from outlast.stores.rabbitmq.outbox import Batch
from outlast.stores.rabbitmq.source import put_back

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.job import Failure
    from outlast.stores.news import News
    from outlast.stores.rabbitmq.engine import Engine
    from outlast.stores.rabbitmq.held import Held
    from outlast.stores.rabbitmq.op import Op
    from outlast.stores.rabbitmq.topology import Place
    from outlast.stores.rabbitmq.work import Work

__all__ = ["Claiming"]

_log = logging.getLogger(__name__)


class Claiming:
    """Lives in the engine's thread."""

    def __init__(self, work: Work, news: News) -> None:
        self._work = work
        self._news = news

    def begin(
        self,
        engine: Engine,
        op: Op[Sequence[Claim]],
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        worker: str,
    ) -> None:
        engine.consume()
        seen = self._news.count(WORK, queues)
        apart = engine.intake.apart.of(queues, tasks)
        if apart is not None or engine.intake.apart.runs:
            if apart is None or engine.intake.out:
                op.answer = []  # until what runs has ended, that it may run alone
                self._looked(queues, seen, enough=False)
                engine.answer(op)
            else:
                engine.spawn(self._begin_apart(engine, op, apart, limit, worker))
            return
        claims = self._take(engine, queues, tasks, limit, worker)
        if claims or engine.intake.knows(queues, tasks):
            self._looked(queues, seen, enough=len(claims) >= limit)
            op.answer = claims
            engine.answer(op)
        else:
            engine.spawn(self._begin_late(engine, op, queues, tasks, limit, worker))

    async def _begin_late(
        self,
        engine: Engine,
        op: Op[Sequence[Claim]],
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        worker: str,
    ) -> None:
        """The first time: what lies there is to be found, not only what is sent later."""
        try:
            await engine.consuming()
            await engine.intake.catch_up(queues, tasks)
            seen = self._news.count(WORK, queues)
            op.answer = claims = self._take(engine, queues, tasks, limit, worker)
            self._looked(queues, seen, enough=len(claims) >= limit)
        except Exception as error:
            op.error = error
        engine.answer(op)

    async def _begin_apart(
        self, engine: Engine, op: Op[Sequence[Claim]], place: Place, limit: int, worker: str
    ) -> None:
        """One of those that were set apart, while nothing else is claimed."""
        try:
            held = await engine.intake.apart.fetch_alone(place) if limit > 0 else None
            op.answer = [] if held is None else self._claims(engine, [held], worker)
        except Exception as error:
            op.error = error
        if op.answer:
            self._news.overlook(WORK, [place.queue])
        else:  # whoever was sent away meanwhile may look again
            self._news.heard(WORK, [place.queue])
        engine.answer(op)

    def _take(
        self,
        engine: Engine,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        worker: str,
    ) -> list[Claim]:
        claims: list[Claim] = []
        while len(claims) < limit:
            helds = engine.intake.take(queues, tasks, limit - len(claims))
            if not helds:
                break
            claims += self._claims(engine, helds, worker)
        return claims

    def _claims(self, engine: Engine, helds: Sequence[Held], worker: str) -> list[Claim]:
        claims = []
        now = engine.loop.time()
        for held in helds:
            found = self._work.claim(held, worker, now - held.at)
            if isinstance(found, Claim):
                held.claim = found
                claimed[found.receipt] = held
                claims.append(found)
            elif found is None:
                engine.intake.acknowledge([held])
            elif found == "apart":
                self._set_apart(engine, held)
            else:
                self._bury(engine, held, found)
        return claims

    def _looked(self, queues: Sequence[str], seen: Mapping[str, int], *, enough: bool) -> None:
        if enough:
            self._news.overlook(WORK, queues)
        else:
            self._news.look(WORK, seen)

    def give_back(self, engine: Engine, helds: Sequence[Held]) -> None:
        """What was sent ahead and not claimed, to the end of its queue.

        The broker would count a plain refusal as if a worker had died.
        """

        def moved(batch: Batch) -> None:
            self._moved(engine, batch, helds)
            if batch.failures:
                # Who asked meanwhile has found nothing.
                queues = {held.source.place.queue for held in helds}
                engine.loop.call_soon(self._news.heard, WORK, queues)

        batch = Batch(len(helds), moved)
        for posting in [self._work.unclaimed(held, batch) for held in helds]:
            engine.outbox.send(posting)

    def _bury(self, engine: Engine, held: Held, failure: Failure) -> None:
        """With the dead first; only then is it acknowledged."""
        _log.warning("a job of task %s is dead: %s", held.source.place.task, failure.message)
        batch = Batch(1, lambda batch: self._moved(engine, batch, [held]))
        engine.outbox.send(self._work.buried(held, failure, batch))

    def _set_apart(self, engine: Engine, held: Held) -> None:
        def moved(batch: Batch) -> None:
            self._moved(engine, batch, [held])
            if not batch.failures:
                engine.intake.there_is(posting.place)

        batch = Batch(1, moved)
        posting = self._work.set_apart(held, batch)
        engine.outbox.send(posting)

    def _moved(self, engine: Engine, batch: Batch, helds: Sequence[Held]) -> None:
        """What could not be moved stays here: it may be claimed, or is moved a while later."""
        failed = {id(posting.mark) for posting, _, _ in batch.failures}
        engine.intake.acknowledge([held for held in helds if id(held) not in failed])
        if failed:
            stay = [held for held in helds if id(held) in failed]
            # Not now: who takes from there may be the caller.
            engine.loop.call_soon(put_back, stay)
