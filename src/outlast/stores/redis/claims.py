"""Claiming: what its script is asked, and the claims in its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.stores.redis.op import MORE, Place
from outlast.stores.redis.rows import claim_from

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Claim
    from outlast.stores.redis.op import Arg

__all__ = ["Claiming", "claim_args"]


def claim_args(
    queues: Sequence[str],
    tasks: Sequence[str | None],
    limit: int,
    lease: float,
    worker: str,
    newest: bool,
    token: bytes,
    again: str,
    successor: str,
) -> list[Arg]:
    """``again`` is where to look for what was claimed when the answer was lost; else empty.

    ``successor`` is the run of a server that has taken over from another; else empty.
    """
    lines: list[Arg] = []
    for queue in dict.fromkeys(queues):
        for task in dict.fromkeys(tasks):
            lines += (queue, queue if task is None else f"{queue}/{task}")
    return [
        limit, repr(float(lease)), worker, token.hex(), int(newest), again, successor,
        len(lines) // 2, *lines,
    ]  # fmt: skip


class Claiming:
    """One claim. Should its answer be lost, what it had claimed is found again, piece by piece."""

    __slots__ = ("_asked", "_found", "_limit", "_place", "_rest", "_successor", "may_be_more")

    def __init__(
        self, limit: int, run: Callable[[], str], successor: Callable[[], str], *rest: Any
    ) -> None:
        self._limit = limit
        self._rest = rest
        self._successor = successor
        self._place = Place(run)
        self._found: dict[str, Claim] = {}
        self._asked = False
        self.may_be_more = False
        """Than one call looks through."""

    def args(self, again: bool) -> list[Arg]:
        if again and (self._place.look() or self._asked):
            # A call whose answer is lost may have claimed what a later look from there misses.
            self._place.text = "0"
            self._found.clear()
        self._asked = True
        queues, tasks, lease, worker, newest, token = self._rest
        return claim_args(
            queues, tasks, self._limit - len(self._found), lease, worker, newest, token,
            self._place.text if again else "", self._successor(),
        )  # fmt: skip

    def parse(self, raw: Sequence[Any]) -> Any:
        """The claims, or ``MORE``."""
        self._asked = False
        claims = [claim_from(raw[n], raw[n + 1], raw[n + 2]) for n in range(1, len(raw), 3)]
        if isinstance(raw[0], bytes) or self._found:
            # A set that changes between two pieces may show a member in both.
            self._found |= {claim.job.id: claim for claim in claims}
            claims = list(self._found.values())
        if isinstance(raw[0], bytes):
            self._place.text = raw[0].decode()
            return MORE
        self.may_be_more = bool(raw[0])
        return claims
