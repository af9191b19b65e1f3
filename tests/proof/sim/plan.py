"""What goes wrong in a world, and when: drawn beforehand, so that it can be cut down later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    import random

__all__ = ["PROFILES", "Fault", "Profile", "draw"]

Kind = Literal[
    "kill", "term", "freeze", "refuse", "silence", "deafen", "cut", "bounce", "weather", "wall",
    "step",
]  # fmt: skip
DAYS = 86400.0


class Fault(Struct, frozen=True):
    """One fault: ``target`` counts workers first, then producers; ``size`` is what it takes."""

    at: float
    kind: Kind
    target: int = 0
    length: float = 0.0
    size: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        return f"{self.at:.1f}s {self.kind} {self.note} of {self.target} for {self.length:.1f}s"


class Profile(Struct, frozen=True, kw_only=True):
    """The size of a world. ``seasons`` 0: everything happens at once; else idle time is skipped."""

    workers: tuple[int, int]
    producers: int
    jobs: int
    seconds: float
    gap: float
    """Seconds from one fault to the next, on average."""
    seasons: int = 0
    leases: tuple[float, ...] = (3.0, 5.0)


PROFILES = {
    "dense": Profile(workers=(3, 6), producers=8, jobs=9, seconds=26.0, gap=0.9),
    "sparse": Profile(
        workers=(2, 3), producers=2, jobs=12, seconds=7.0, gap=4.0, seasons=12, leases=(3.0, 15.0)
    ),
}

SHARES: dict[Kind, int] = {
    "kill": 16, "term": 10, "freeze": 14, "refuse": 7, "silence": 8, "deafen": 6, "cut": 8,
    "bounce": 6, "weather": 14, "wall": 6, "step": 5,
}  # fmt: skip


def draw(profile: Profile, dice: random.Random, workers: int, lease: float) -> list[Fault]:
    """The faults of one world, in the order of time."""
    faults = []
    at = dice.expovariate(1 / profile.gap)
    span = profile.seconds * max(1, profile.seasons)
    kinds = list(SHARES)
    # Each world has its own mix, so that some kinds come in company that others never get.
    weights = [share * dice.choice((0.0, 0.5, 1.0, 3.0)) + 0.1 for share in SHARES.values()]
    while at < span:
        (kind,) = dice.choices(kinds, weights)
        faults.append(_fault(kind, at, dice, workers, profile.producers, lease))
        at += dice.expovariate(1 / profile.gap)
    return faults


def _fault(
    kind: Kind, at: float, dice: random.Random, workers: int, producers: int, lease: float
) -> Fault:
    target = dice.randrange(workers)
    short, long = dice.uniform(0.2, lease), dice.uniform(lease, 3 * lease)
    length = dice.choice((short, long))
    match kind:
        case "refuse" | "silence" | "deafen":
            return Fault(at, kind, dice.randrange(workers + producers), length)
        case "freeze":
            return Fault(at, kind, target, dice.choice((short, long, long)))
        case "cut" | "bounce":
            return Fault(at, kind, 0, dice.uniform(0.0, 2.0), 0.0, dice.choice(("before", "after")))
        case "weather":
            sort = dice.choice(("before", "after", "mute", "twice", "late"))
            return Fault(at, kind, 0, dice.uniform(1.0, 8.0), dice.choice((0.05, 0.2, 0.5)), sort)
        case "wall" | "step":
            size = dice.choice((-3 * DAYS, 3 * DAYS, -3600.0, 3600.0, -20.0, 20.0))
            return Fault(at, kind, target, 0.0, size)
        case _:
            # A short rest before it is started again.
            return Fault(at, kind, target, dice.uniform(0.1, 3.0))
