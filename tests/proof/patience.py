"""Waiting in the rigs: for a condition with a deadline, or for a moment drawn by lot."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["linger", "until"]


def until(condition: Callable[[], object], seconds: float, what: str, beat: float = 0.005) -> None:
    """Return once the condition holds; ``TimeoutError`` naming ``what`` after the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(beat)


def linger(seconds: float) -> None:
    """Let this much time pass: the moment of a fault is drawn by lot, and nothing announces it."""
    time.sleep(seconds)
