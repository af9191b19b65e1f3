"""Steps and events of one namespace: what jobs have done once, and what they wait for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlast.job import Status
from outlast.movable import SentEvent

if TYPE_CHECKING:
    from outlast.job import Step
    from outlast.stores.memory.table import Table

__all__ = ["Deeds"]


class Deeds:
    """The steps by job, and the events by name. Deadlines stand in ``left``, as moments."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._steps: defaultdict[str, dict[str, Step]] = defaultdict(dict)
        self._events: dict[str, tuple[bytes, float]] = {}
        table.forget = self._steps.pop

    def recall(self, job: str, now: float) -> list[Step]:
        steps = self._steps.get(job, {}).values()
        return [
            step if step.left is None else replace(step, left=step.left - now) for step in steps
        ]

    def remember(self, job: str, step: Step, now: float) -> None:
        left = None if step.delay is None else now + step.delay
        self._steps[job][step.name] = replace(step, delay=None, left=left)

    def event(self, name: str, now: float) -> bytes | None:
        payload, until = self._events.get(name, (b"", now))
        return payload if until > now else None

    def emit(self, name: str, payload: bytes, keep: float, now: float) -> bool:
        if self.event(name, now) is not None:
            return False
        self._events[name] = (payload, now + keep)
        for id_, steps in self._steps.items():
            row = self._table.rows[id_]
            waits = any(step.event == name and step.result is None for step in steps.values())
            if waits and row.job.status is Status.QUEUED and row.later:
                self._table.hasten(row, now)
        return True

    def sent(self) -> list[SentEvent]:
        """All events that are remembered."""
        return [SentEvent(name, *event) for name, event in self._events.items()]

    def take_in(self, event: SentEvent) -> None:
        """An event of another store, unless there is one of that name."""
        self._events.setdefault(event.name, (event.payload, event.until))

    def clear(self) -> None:
        """Forget everything."""
        self._steps.clear()
        self._events.clear()

    def prune(self, limit: int, now: float) -> int:
        """Forget at most ``limit`` events that are past their time; how many."""
        gone = [name for name, (_, until) in self._events.items() if until <= now][:limit]
        for name in gone:
            del self._events[name]
        return len(gone)
