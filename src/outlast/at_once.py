"""Runs a coroutine that never waits to its end, here and now, in the caller's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["at_once"]

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns. Raises ``RuntimeError`` if it waits for anything after all."""
    try:
        work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    work.close()
    raise RuntimeError("this was to be done at once, and has to wait")
