"""Steps and events: what jobs have done once, and what they wait for, as calls of their script."""

from __future__ import annotations

from struct import unpack_from
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.job import Step
from outlast.stores.redis.op import Op
from outlast.stores.surface import Surface

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Claim
    from outlast.stores.redis.op import Arg

__all__ = ["Stepped", "own_of", "step_from"]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[bytes, bytes | None, str | None]).decode


class Stepped(Surface):
    """The ``Stepping`` part of the store."""

    async def recall(self, claim: Claim) -> Sequence[Step]:
        return await self._do(_recall(claim))

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        """``recall`` for callers without an event loop; blocks."""
        return self._hand_over(_recall(claim)).result()

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


def _recall(claim: Claim) -> Op[Sequence[Step]]:
    return Op("steps", ["recall", claim.job.id], _steps)


def _steps(raw: Sequence[Any]) -> list[Step]:
    now = float(raw[0])
    return [step_from(raw[n].decode(), raw[n + 1], now) for n in range(1, len(raw), 2)]


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
