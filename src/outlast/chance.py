"""Ids, receipts and jitter: the only module that draws random numbers."""

from __future__ import annotations

import os
import random
import time
import weakref
from typing import Protocol

__all__ = ["Chance", "SeededChance", "SystemChance"]


class Chance(Protocol):
    """Where ids and random choices come from, so that a simulation can repeat them."""

    def uuid7(self) -> str:
        """A UUID version 7 (RFC 9562) as text: unique, and ordered by time within a process."""
        ...

    def token(self) -> bytes:
        """16 random bytes: a receipt nobody can guess or make twice."""
        ...

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


def _uuid7(millis: int, sequence: int, tail: int) -> str:
    m, t = f"{millis:012x}", f"{2 << 62 | tail:016x}"
    return f"{m[:8]}-{m[8:]}-7{sequence:03x}-{t[:4]}-{t[4:]}"


class SystemChance:
    """The operating system's randomness: directly for receipts, as a seed for ids and jitter.

    The generator is our own, so a user's ``random.seed(0)`` can't make two processes agree on
    their ids, and it is seeded anew in a forked child.
    """

    __slots__ = ("__weakref__", "_last", "_random")

    def __init__(self) -> None:
        self._random = random.Random()
        self._last = 0
        if hasattr(os, "register_at_fork"):
            fresh = weakref.WeakMethod(self._after_fork)
            os.register_at_fork(after_in_child=lambda: (fresh() or _nothing)())

    def uuid7(self) -> str:
        # RFC 9562, 6.2, method 3: twelve bits below the millisecond keep the order.
        stamp = time.time_ns() * 4096 // 1_000_000
        if stamp <= self._last:
            stamp = self._last + 1
        self._last = stamp
        return _uuid7(stamp >> 12, stamp & 0xFFF, self._random.getrandbits(62))

    def token(self) -> bytes:
        return os.urandom(16)

    def random(self) -> float:
        return self._random.random()

    def _after_fork(self) -> None:
        self._random.seed()


def _nothing() -> None:
    """Stands in for a generator that is gone."""


class SeededChance:
    """Repeatable randomness for simulations and tests. Never for production."""

    __slots__ = ("_millis", "_random")

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._millis = 0

    def uuid7(self) -> str:
        self._millis += 1
        return _uuid7(self._millis, 0, self._random.getrandbits(62))

    def token(self) -> bytes:
        return self._random.getrandbits(128).to_bytes(16, "big")

    def random(self) -> float:
        return self._random.random()
