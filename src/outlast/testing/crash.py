"""Crashes at named points of a job's life: what a worker's sudden death would leave behind."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, get_args

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["POINTS", "Point", "dies_after", "kill_after"]

Point = Literal["claimed", "started", "returned", "settled"]
"""Where a worker can die: with the job in its hands; with the function entered and nothing done;
with everything done and nothing said; and after that."""

POINTS: tuple[Point, ...] = get_args(Point)

_armed: ContextVar[list[Point] | None] = ContextVar("outlast-kill-after", default=None)


@contextmanager
def kill_after(point: Point, times: int = 1) -> Iterator[None]:
    """Inside, the worker of ``drain`` dies at that point, ``times`` times, without cleaning up.

    The job is then where a dead worker's job would be: queued again, or for "settled" ended. Raises
    ``ConfigurationError`` for a point that doesn't exist, ``AssertionError`` at the end if it was
    not reached so often.
    """
    if point not in POINTS:
        raise ConfigurationError(f"no point {point!r} in the life of a job; use one of {POINTS}")
    left: list[Point] = [point] * times
    token = _armed.set(left)
    try:
        yield
    finally:
        _armed.reset(token)
    if left:
        raise AssertionError(f"no job came to the point {point!r}, or only {times - len(left)}")


def dies_after(point: Point) -> bool:
    """Whether the worker is to die here and now."""
    left = _armed.get()
    if not left or left[-1] != point:
        return False
    left.pop()
    return True
