"""Runs worlds by their seeds, adds up what came of them, and cuts a failing one down."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec import Struct
from tests.proof.sim.world import Outcome, run_world

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Sum", "command", "explain", "run_worlds", "shrink"]

TRIES = 80


class Sum(Struct, kw_only=True):
    """What many worlds came to; printed as JSON for the long runs."""

    seed: int = 0
    seeds: int = 0
    dense: int = 0
    """Of these, how many had faults all the time."""
    steps: int = 0
    hours: float = 0.0
    """Of dense worlds, without what was skipped."""
    years: float = 0.0
    seconds: float = 0.0
    acknowledged: int = 0
    uncertain: int = 0
    runs: int = 0
    explained: int = 0
    zombies: int = 0
    lost: int = 0
    broken: dict[str, int] = {}
    stories: list[str] = []

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        if outcome.profile == "dense":
            self.dense += 1
            self.hours += (outcome.seconds - outcome.idle) / 3600
        else:
            self.years += outcome.seconds / 3600 / 24 / 365.25
        for name in ("acknowledged", "uncertain", "runs", "explained", "zombies"):
            setattr(self, name, getattr(self, name) + getattr(outcome, name))
        for name, found in outcome.broken.items():
            self.broken[name] = self.broken.get(name, 0) + len(found)
        if outcome.broken and len(self.stories) < 3:
            self.stories.append(explain(outcome))


def command(seed: int, profile: str, faults: Sequence[int] | None = None) -> str:
    """What repeats a world."""
    words = f"python -m tests.proof.sim --seed {seed} --profile {profile}"
    if faults is not None:
        words += " --faults " + (",".join(map(str, faults)) or "none")
    return words


def explain(outcome: Outcome) -> str:
    """A failure, and the least that still shows it."""
    needed = shrink(outcome)
    small = run_world(outcome.seed, outcome.profile, needed)
    told = small if small.broken else outcome
    return "\n".join(
        [
            command(outcome.seed, outcome.profile),
            f"broken: {sorted(outcome.broken)}; {len(needed)} of {len(outcome.faults)} faults do:",
            command(outcome.seed, outcome.profile, needed),
            *told.faults,
            told.story,
        ]
    )


def shrink(outcome: Outcome) -> list[int]:
    """The numbers of as few faults as still break one of the same promises."""
    wanted = set(outcome.broken)
    needed = [int(fault.partition(":")[0]) for fault in outcome.faults]
    tries = TRIES
    size = max(1, len(needed) // 2)
    while size and tries:
        at = 0
        while at < len(needed) and tries:
            fewer = needed[:at] + needed[at + size :]
            tries -= 1
            if wanted & set(run_world(outcome.seed, outcome.profile, fewer).broken):
                needed = fewer
            else:
                at += size
        size //= 2
    return needed


def run_worlds(seeds: Iterable[int], profiles: Sequence[str], budget: float = 1e9) -> Sum:
    """One world after another, each seed with the profile whose turn it is."""
    total = Sum()
    began = time.monotonic()
    for seed in seeds:
        if time.monotonic() - began > budget:
            break
        total.add(run_world(seed, profiles[seed % len(profiles)]))
    total.seconds = time.monotonic() - began
    return total
