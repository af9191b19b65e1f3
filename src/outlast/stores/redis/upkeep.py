"""The calls that keep a store in order: leases, deaths, expiry, and who is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from outlast.job import Lost
from outlast.store import WorkerInfo
from outlast.stores.redis.op import Op
from outlast.stores.redis.rows import dump

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Claim, Death, Progress
    from outlast.stores.redis.op import Arg

__all__ = ["beat", "idle", "leave", "prune", "recover", "recover_worker", "renew", "workers"]

HOUR = 3600.0

_load_worker = msgspec.json.Decoder(WorkerInfo).decode


def renew(claims: Sequence[Claim], lease: float, notes: Sequence[Progress]) -> Op[Sequence[Lost]]:
    by_id = {note.id: dump(note) for note in notes}
    args: list[Arg] = [repr(float(lease)), len(claims)]
    for claim in claims:
        args += (claim.job.id, claim.receipt.hex(), by_id.get(claim.job.id, b""))

    def parse(raw: Sequence[Any]) -> Sequence[Lost]:
        return [
            Lost(claims[n - 1], "cancelled" if reason == b"cancelled" else "lost")
            for n, reason in raw
        ]

    return Op("renew", args, parse)


def recover(limit: int, run: Callable[[], str]) -> Op[tuple[int, bool]]:
    """``run`` names the server's run when the call is sent: the connection may be a new one."""
    return Op("recover", lambda _: [limit, run()], lambda raw: (raw[0], bool(raw[1])))


def recover_worker(worker: str, cause: Death) -> Op[tuple[int, bool]]:
    """A piece of what it held: how many, and whether there is more."""
    args: list[Arg] = [worker, int(cause.sole), dump(cause.failure)]
    for named in (cause.started, cause.blamed):
        args += [-1] if named is None else [len(named), *named]
    return Op("recover_worker", args, lambda raw: (raw[0], bool(raw[1])))


def prune(limit: int) -> Op[int]:
    return Op("prune", [limit], int)


def idle(queues: Sequence[str], space: bool) -> Op[tuple[bool, float | None]]:
    def parse(raw: Sequence[Any]) -> tuple[bool, float | None]:
        return bool(raw[0]), float(raw[1]) if raw[1] else None

    return Op("idle", [int(space), *dict.fromkeys(queues)], parse)


def beat(info: WorkerInfo) -> Op[None]:
    return Op("steer", ["beat", info.id, dump(info)])


def leave(worker: str) -> Op[None]:
    return Op("steer", ["leave", worker])


def workers() -> Op[Sequence[WorkerInfo]]:
    def parse(raw: Sequence[Any]) -> Sequence[WorkerInfo]:
        return [
            replace(_load_worker(raw[n]), seen_at=float(raw[n + 1])) for n in range(0, len(raw), 2)
        ]

    return Op("look", ["workers", repr(HOUR)], parse)
