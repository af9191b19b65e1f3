"""Steps and events: what jobs have done once, and what they wait for, as calls of their script."""

from __future__ import annotations

from abc import abstractmethod
from struct import unpack_from
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.job import Step
from outlast.stores.redis.op import Op, Place
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Claim
    from outlast.stores.redis.op import Arg

__all__ = ["Stepped", "own_of", "step_from"]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes, bytes | None, str | None]).decode


class Stepped(Surface):
    """The ``Stepping`` part of the store."""

    @abstractmethod
    def _which_run(self) -> str: ...

    async def recall(self, claim: Claim) -> Sequence[Step]:
        told = _Recalled(claim.job.id, self._which_run)
        while told.goes_on:
            await self._do(told.ask())
        return list(told.steps.values())

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        """``recall`` for callers without an event loop; blocks."""
        told = _Recalled(claim.job.id, self._which_run)
        while told.goes_on:
            self._hand_over(told.ask()).result()
        return list(told.steps.values())

    async def remember(self, claim: Claim, step: Step) -> bool:
        return await self._do(_remember(claim, step))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """``remember`` for callers without an event loop; blocks until it is durable."""
        return self._hand_over(_remember(claim, step)).result()

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        token = self._chance.token()[:16]
        args: list[Arg] = ["emit", event, token, repr(float(keep)), payload]
        sent: Op[tuple[bool, bool]] = Op("steps", args, lambda raw: (raw[0] == 1, raw[1] == 1))
        first, more = await self._do(sent)
        # Should we die here, whoever prunes goes on.
        while more:
            wake: Op[bool] = Op("steps", ["wake"], bool)
            more = await self._do(wake)
        return first

    async def event(self, event: str) -> bytes | None:
        found: Op[bytes | None] = Op("steps", ["event", event], lambda raw: raw)
        return await self._do(found)


class _Recalled:
    """The steps of a job, read in pieces. Nobody adds to them meanwhile."""

    def __init__(self, job: str, run: Callable[[], str]) -> None:
        self.steps: dict[str, Step] = {}
        self.goes_on = True
        self._job = job
        self._place = Place(run)

    def ask(self) -> Op[None]:
        return Op("steps", self._args, self._read)

    def _args(self, _: bool) -> Sequence[Arg]:
        if self._place.look():
            self.steps.clear()
        return ["recall", self._job, self._place.text]

    def _read(self, raw: Sequence[Any]) -> None:
        now, self._place.text = float(raw[0]), raw[1].decode()
        self.goes_on = self._place.text != "0"
        for n in range(2, len(raw), 2):
            name = raw[n].decode()
            self.steps[name] = step_from(name, raw[n + 1], now)


def step_from(name: str, stored: bytes, now: float) -> Step:
    until, size = unpack_from(">dI", stored)
    digest, result, event = _unpack(stored[12 + size :])
    left = None if until == float("inf") else until - now
    return Step(name=name, digest=digest, result=result, left=left, event=event)


def _remember(claim: Claim, step: Step) -> Op[bool]:
    delay = "" if step.delay is None else repr(float(step.delay))
    waits = (step.event or "") if step.result is None else ""
    place = (claim.job.id, claim.receipt.hex(), step.name, delay, waits)
    return Op("steps", ["remember", *place, own_of(step)], bool)


def own_of(step: Step) -> bytes:
    """What no script ever reads of a step."""
    return _pack((step.digest, step.result, step.event))
