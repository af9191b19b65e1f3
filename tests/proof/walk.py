"""A long random walk over a store's calls, from a seed: many steps fast, and again if need be."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tests.proof.comparison import QUEUES, TASKS, WORKERS, Comparison, Settlement

from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["walk"]

T = TypeVar("T")

KINDS = ("done", "done", "retry", "crash", "give_back", "untouched", "dead", "cancelled")
WEIGHTS = {
    "add": 20,
    "claim": 8,
    "claim_anything": 12,
    "settle": 20,
    "renew": 5,
    "recover": 5,
    "recover_worker": 5,
    "cancel": 6,
    "revive": 6,
    "purge": 2,
    "prune": 3,
    "pause": 3,
    "advance": 12,
    "reopen": 1,
}


class Draw:
    """Arguments for each call, from one source of chance."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.lanes = self.one((None,), (None, None, "l1", "l2"))

    def one(self, *values: T) -> T:
        return self.chance.choice(values)

    def some(self, values: Sequence[T]) -> list[T]:
        return self.chance.sample(values, self.chance.randint(1, len(values)))

    def picks(self) -> list[int]:
        return [self.chance.randrange(8) for _ in range(self.chance.randint(1, 3))]

    def job(self) -> dict[str, Any]:
        return {
            "name": self.one(0, 0, 0, 0, -1, -2, -5),
            "queue": self.one(*QUEUES),
            "task": self.one(*TASKS),
            "payload": self.one(b"1", b"1", b"2"),
            "priority": self.one(0, 0, 0, 1, -1),
            "rank": self.one(b"", b"", b"\x01"),
            "delay": self.one(None, None, None, 0, 5, 20),
            "ttl": self.one(None, None, None, None, 12),
            "key": self.one(None, None, "k1", "k2", "k3"),
            "digest": self.one(b"1", b"1", b"1", b"2"),
            "keep_key": self.one(0, 15, 40),
            "keep": self.one(0, 10, 10, None),
            "lane": self.one(*self.lanes),
            "max_crashes": self.one(1, 2, None),
        }

    def jobs(self, most: int) -> list[dict[str, Any]]:
        return [self.job() for _ in range(self.chance.randint(0, most))]

    def settlement(self) -> Settlement:
        then = self.jobs(1) if self.chance.random() < 0.2 else []
        return self.chance.randrange(8), self.one(*KINDS), self.one(0.0, 0.0, 5.0), then

    def arguments(self, call: str) -> tuple[Any, ...]:
        made = getattr(self, f"for_{call}", None)
        return () if made is None else tuple(made())

    def for_add(self) -> Any:
        return self.jobs(4), self.one(None, None, None, None, 2, 6)

    def for_claim(self) -> Any:
        limit, lease = self.chance.randrange(5), self.one(8.0, 30.0)
        newest = self.chance.random() < 0.5
        return self.some(QUEUES), self.some(TASKS), limit, lease, self.one(*WORKERS), newest

    def for_claim_anything(self) -> Any:
        return self.one(1, 3, 6), self.one(*WORKERS)

    def for_settle(self) -> Any:
        return ([self.settlement() for _ in range(self.chance.randint(1, 4))],)

    def for_renew(self) -> Any:
        return self.picks(), self.one(3.0, 30.0), self.one(True, False)

    def for_recover_worker(self) -> Any:
        started, blamed = self.one(None, self.picks()), self.one(None, None, self.picks())
        return self.one(*WORKERS), started, blamed, self.one(True, False)

    def for_cancel(self) -> Any:
        return (self.picks(),)

    def for_revive(self) -> Any:
        return (self.picks(),)

    def for_purge(self) -> Any:
        return self.one(*QUEUES, "none"), self.some(tuple(Status)), self.one(True, False)

    def for_pause(self) -> Any:
        return (self.one(*QUEUES),)

    def for_advance(self) -> Any:
        return (self.one(1.0, 1.0, 5.0, 5.0, 10.0, 30.0),)


def walk(kind: str, seed: int, steps: int) -> None:
    """Take ``steps`` random steps. A difference is raised with the seed and all calls so far."""
    chance = Random(seed)
    draw = Draw(chance)
    calls: list[str] = []
    comparison = Comparison(kind)
    try:
        for name in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps):
            arguments = draw.arguments(name)
            calls.append(f"{name}{arguments!r}")
            getattr(comparison, name)(*arguments)
            comparison.check()
            if len(comparison.ids) > 40:
                # Those that are long gone slow it down and tell nothing.
                del comparison.ids[:-30]
    except BaseException as error:
        error.add_note(f"walk({kind!r}, seed={seed}), step {len(calls)}: ... " + calls[-1])
        raise
    finally:
        comparison.end()
