"""Names and arguments of everything that is declared on the broker, and the ladder of delays.

A line is the jobs of one task in one queue; it has an AMQP queue for each band of priority in use.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Any

from msgspec import Struct

from outlast.errors import Unsupported

__all__ = [
    "ALONE",
    "BANDS",
    "BELLS",
    "DELIVER",
    "LEVELS",
    "LINES",
    "UNIT",
    "Place",
    "band_of",
    "dead_name",
    "delay_key",
    "deliver_key",
    "level_arguments",
    "level_name",
    "level_patterns",
    "line_arguments",
    "news_name",
    "plain_arguments",
    "sweep_name",
]

BANDS = ("!high", "", "!low")
"""From the most urgent on: priorities above 0, priority 0, and those below."""
ALONE = "!alone"
"""Jobs that came back too often: nobody is sent them, they are fetched one at a time."""
BELLS = "!bell"
"""Where jobs stand in other records: messages that say no more than that there is work."""
UNIT = 0.125
"""Seconds that the lowest level of the ladder holds a message; each level twice as long."""
LEVELS = 32
"""That makes 17 years."""
LINES = "outlast/lines"
"""The exchange that jobs are sent through. A line is bound to it once it is safe to use."""
DELIVER = "outlast/deliver"
"""The exchange behind the ladder: each line is bound to it under its name."""
LONGEST = 180
"""Characters of a name: a routing key has 255, and the ladder's directions need 64 of them."""


class Place(Struct, frozen=True):
    """One AMQP queue of jobs: where it stands, and what it is called."""

    queue: str
    task: str | None
    band: str
    name: str
    dead: str

    @staticmethod
    @lru_cache(maxsize=4096)
    def of(namespace: str, queue: str, task: str | None, band: str) -> Place:
        name = _short(f"outlast/{namespace}/{queue}/{task or ''}{band}")
        return Place(queue, task, band, name, dead_name(namespace, queue))


def band_of(priority: int) -> str:
    return BANDS[(priority <= 0) + (priority < 0)]


def dead_name(namespace: str, queue: str) -> str:
    """Where the dead of a queue lie."""
    return _short(f"outlast/{namespace}/{queue}!dead")


def news_name(namespace: str) -> str:
    """The exchange that tells workers which queues there are."""
    return f"outlast/{namespace}!news"


def sweep_name(namespace: str) -> str:
    """The queue that is always empty: who may consume from it sweeps."""
    return f"outlast/{namespace}!sweep"


def _short(name: str) -> str:
    """A name that fits, whatever its parts are: too long a one ends in its digest."""
    if len(name) <= LONGEST:
        return name
    return f"{name[: LONGEST - 33]}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def plain_arguments(version: tuple[int, ...]) -> dict[str, Any]:
    """Of a quorum queue from which the broker itself takes nothing away.

    Up to 3.x there is no limit of deliveries unless one is set, and -1 drops a message when it
    comes back for the first time. From 4.0 on there is one unless -1 is set.
    """
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    if version >= (4, 0):
        arguments["x-delivery-limit"] = -1
    return arguments


def line_arguments(version: tuple[int, ...], dead: str) -> dict[str, Any]:
    """What an operator's policy makes the broker take away lies with the dead, not nowhere."""
    return plain_arguments(version) | {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def level_name(level: int) -> str:
    """An exchange, and the queue of the same name behind it."""
    return DELIVER if level < 0 else f"outlast/delay/{level:02}"


def level_arguments(level: int) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-message-ttl": int(UNIT * 1000) << level,
        "x-dead-letter-exchange": level_name(level - 1),
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


def level_patterns(level: int) -> tuple[str, str]:
    """Which routing keys wait at this level, and which go straight on to the next."""
    before = "*." * (LEVELS - 1 - level)
    return f"{before}1.#", f"{before}0.#"


def delay_key(seconds: float, name: str) -> tuple[int, str]:
    """At which level a delay begins, and the routing key that is its way down.

    Raises ``Unsupported`` for more than the ladder can hold.
    """
    units = max(1, math.ceil(seconds / UNIT - 1e-6))
    if units >= 1 << LEVELS:
        raise Unsupported(f"a delay of {seconds:g} s: RabbitMQ holds jobs for 17 years at most")
    return units.bit_length() - 1, f"{'.'.join(f'{units:0{LEVELS}b}')}.{name}"


def deliver_key(name: str) -> str:
    """What binds a line to the end of the ladder."""
    return "*." * LEVELS + name
