"""Ids, receipts and jitter: the only module that draws random numbers."""

from __future__ import annotations

import os
import random
import time
import weakref
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Chance", "SeededChance", "SystemChance", "made_at"]

_VARIANT = int("8000000000000000" * 100, 16)
_NO_VARIANT = int("3fffffffffffffff" * 100, 16)


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
    return f"{_stamp(millis)}{_sequences()[sequence]}{_tail(tail)}"


def _stamp(millis: int) -> str:
    return f"{millis >> 16:08x}-{millis & 0xFFFF:04x}-7"


def _tail(bits: int) -> str:
    text = (bits | 2 << 62).to_bytes(8, "big").hex()
    return f"{text[:4]}-{text[4:]}"


@cache
def _sequences() -> Sequence[str]:
    """Every value of the twelve bits below the millisecond, as they stand in an id."""
    return tuple(f"{n:03x}-" for n in range(4096))


def made_at(id_: str) -> float | None:
    """When an id of ours was made, in seconds since 1970 by the clock there; None for others."""
    if len(id_) != 36 or id_[14] != "7":
        return None
    try:
        return int(id_[:8] + id_[9:13], 16) / 1000
    except ValueError:
        return None


class SystemChance:
    """The operating system's randomness: directly for receipts, as a seed for ids and jitter.

    The generator is our own, so a user's ``random.seed(0)`` can't make two processes agree on
    their ids, and it is seeded anew in a forked child.
    """

    __slots__ = ("__weakref__", "_last", "_millis", "_random", "_sequences", "_stamp", "_tails")

    def __init__(self) -> None:
        self._random = random.Random()
        self._last = 0
        self._millis = 0
        self._stamp = ""
        self._sequences = _sequences()
        self._tails: list[str] = []
        if hasattr(os, "register_at_fork"):
            fresh = weakref.WeakMethod(self._after_fork)
            os.register_at_fork(after_in_child=lambda: (fresh() or _nothing)())

    def uuid7(self) -> str:
        # RFC 9562, 6.2, method 3: twelve bits below the millisecond keep the order.
        stamp = time.time_ns() * 4096 // 1_000_000
        if stamp <= self._last:
            stamp = self._last + 1
        self._last = stamp
        millis = stamp >> 12
        if millis != self._millis:
            self._millis, self._stamp = millis, _stamp(millis)
        try:
            tail = self._tails.pop()
        except IndexError:
            tail = self._more_tails()
        return f"{self._stamp}{self._sequences[stamp & 0xFFF]}{tail}"

    def _more_tails(self) -> str:
        """The variant and 62 random bits, a hundred times over; one is handed out."""
        bits = self._random.getrandbits(6400) & _NO_VARIANT | _VARIANT
        some = bits.to_bytes(800, "big")
        first, *self._tails = [some[at : at + 8].hex("-", 6) for at in range(0, 800, 8)]
        return first

    def token(self) -> bytes:
        return os.urandom(16)

    def random(self) -> float:
        return self._random.random()

    def _after_fork(self) -> None:
        self._random.seed()
        self._tails.clear()


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
