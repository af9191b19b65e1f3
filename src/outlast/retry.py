"""When a failed run is tried again: how often, how late, for which exceptions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from outlast.chance import Chance

__all__ = ["RetryPolicy"]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how late a task that raised is run again.

    ``attempts`` counts runs, the first included: 1 is never again. The pause after the n-th
    failure is at most ``delay * factor ** (n - 1)`` seconds and at most ``cap``. With ``jitter``
    it is a random part of that, from nothing to all of it, so that jobs that failed together don't
    come back together: "full jitter", of Marc Brooker's "Exponential Backoff and Jitter" on the AWS
    Architecture Blog, which found it the least work for server and clients.

    An exception is tried again if it is one of ``on`` and none of ``never``. ``total`` is how many
    seconds after its first start a job may still be tried again; None: no limit.

    Raises ``ConfigurationError`` for values that make no sense.

    >>> RetryPolicy(attempts=5, delay=2, on=(ConnectionError, TimeoutError), total=3600)
    """

    __module__ = "outlast"

    attempts: int = 1
    delay: float = 1.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: bool = True
    on: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()
    total: float | None = None

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise ConfigurationError(
                f"attempts must be an int of at least 1, not {self.attempts!r}"
            )
        _check_number("delay", self.delay, 0)
        _check_number("factor", self.factor, 1)
        _check_number("cap", self.cap, 0)
        if self.total is not None:
            _check_number("total", self.total, 0)
        if type(self.jitter) is not bool:
            raise ConfigurationError(f"jitter must be True or False, not {self.jitter!r}")
        object.__setattr__(self, "on", _exceptions("on", self.on))
        object.__setattr__(self, "never", _exceptions("never", self.never))

    def next_delay(self, failures: int, chance: Chance) -> float:
        """Seconds to wait after the ``failures``-th failure (1 is the first)."""
        try:
            grown = float(self.factor) ** (max(failures, 1) - 1)
        except OverflowError:
            grown = inf
        # Zero times infinity is no number, and no delay at all is what was asked for.
        longest = min(float(self.cap), self.delay * grown) if self.delay else 0.0
        return longest * chance.random() if self.jitter else longest

    def retries(self, error: BaseException) -> bool:
        """Whether a run that raised ``error`` may be tried again, attempts permitting."""
        return isinstance(error, self.on) and not isinstance(error, self.never)

    def out_of_time(self, elapsed: float) -> bool:
        """Whether ``elapsed`` seconds after the first start it is too late for another try."""
        return self.total is not None and elapsed >= self.total


def _check_number(name: str, value: Any, least: int) -> None:
    if type(value) not in (int, float) or not least <= value <= sys.float_info.max:
        unit = "" if name == "factor" else " (seconds)"
        raise ConfigurationError(
            f"{name} must be a finite number of at least {least}{unit}, not {value!r}"
        )


def _exceptions(name: str, value: Any) -> tuple[type[BaseException], ...]:
    if isinstance(value, type):
        value = (value,)
    if not isinstance(value, tuple | list | set | frozenset):
        raise ConfigurationError(f"{name} must be exception classes, not {value!r}")
    for one in value:
        if not (isinstance(one, type) and issubclass(one, BaseException)):
            raise ConfigurationError(f"{name} must hold exception classes, not {one!r}")
    return tuple(value)
