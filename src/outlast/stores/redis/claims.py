"""Claiming: what its script is asked, and the claims in its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.stores.redis.rows import claim_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Claim
    from outlast.stores.redis.op import Arg

__all__ = ["claim_args", "claims_from"]


def claim_args(
    queues: Sequence[str],
    tasks: Sequence[str | None],
    limit: int,
    lease: float,
    worker: str,
    newest: bool,
    token: bytes,
    again: bool,
) -> list[Arg]:
    lines: list[Arg] = []
    for queue in dict.fromkeys(queues):
        for task in dict.fromkeys(tasks):
            lines += (queue, queue if task is None else f"{queue}/{task}")
    return [
        limit, repr(float(lease)), worker, token.hex(), int(newest), int(again), len(lines) // 2,
        *lines,
    ]  # fmt: skip


def claims_from(raw: Sequence[Any]) -> list[Claim]:
    return [claim_from(raw[n], raw[n + 1], raw[n + 2]) for n in range(1, len(raw), 3)]
