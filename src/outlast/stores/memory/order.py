"""The order in which jobs are given out: rows, the piles they wait in, lines and lanes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outlast.job import Job

__all__ = ["Lane", "Line", "Pile", "Row"]


class Row:
    """One stored job and what only the store knows of it.

    ``stamp`` changes whenever the job moves, which is how a pile sees that an entry is stale.
    """

    __slots__ = ("asked", "job", "lane", "later", "lease", "line", "receipt", "seq", "stamp")

    def __init__(self, job: Job, seq: int, line: Line, lane: Lane | None) -> None:
        self.job = job
        self.seq = seq
        self.line = line
        self.lane = lane
        self.stamp = 0
        self.later = False
        self.asked = False
        self.receipt = b""
        self.lease = 0.0

    @property
    def blocked(self) -> bool:
        """Whether another job holds this one's lane."""
        return self.lane is not None and self.lane.holder not in (None, self)


class Pile:
    """Rows by a key, smallest first. Rows that have moved since are skipped, and swept out."""

    __slots__ = ("_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Row]] = []
        self._sweep_at = 64

    def push(self, key: Any, row: Row) -> None:
        heappush(self._heap, (key, row.stamp, row))
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].stamp]
            heapify(self._heap)
            self._sweep_at = max(64, 2 * len(self._heap))

    def top(self) -> tuple[Any, Row] | None:
        """The first key and its row, which stays."""
        heap = self._heap
        while heap:
            key, stamp, row = heap[0]
            if stamp == row.stamp:
                return key, row
            heappop(heap)
        return None

    def pop(self) -> Row:
        """Take the first row, after ``top`` has shown that there is one."""
        return heappop(self._heap)[2]


def _claim_order(row: Row) -> tuple[Any, ...]:
    job = row.job
    if job.run_at is None:
        return (-job.priority, job.rank, 1, 0.0, row.seq)
    return (-job.priority, job.rank, 0, job.run_at, row.seq)


def _newest_first(row: Row) -> tuple[Any, ...]:
    return (-row.job.priority, row.job.rank, -row.seq)


class Line:
    """The jobs of one task in one queue: those due in claim order, the delayed ones by moment.

    The second order, newest first, is only kept from the first time that somebody asks for it.
    """

    __slots__ = ("_newest", "_oldest", "counts", "delayed", "later", "queue", "task")

    def __init__(self, queue: str, task: str | None) -> None:
        self.queue = queue
        self.task = task
        self.counts = dict.fromkeys(Status, 0)
        self.delayed = 0
        self.later = Pile()
        self._oldest = Pile()
        self._newest: Pile | None = None

    def put(self, row: Row, now: float) -> None:
        """Let a queued row wait here, in its place."""
        run_at = row.job.run_at
        if run_at is not None and run_at > now:
            row.later = True
            self.delayed += 1
            self.later.push((run_at, row.seq), row)
        else:
            self._offer(row)

    def take_out(self, row: Row) -> None:
        """Forget a row that waited here; whatever entries it left behind are stale now."""
        row.stamp += 1
        if row.later:
            row.later = False
            self.delayed -= 1

    def promote(self, now: float) -> bool:
        """Move the delayed rows that have come due among the others; whether there were any."""
        moved = False
        while (top := self.later.top()) is not None and top[0][0] <= now:
            row = self.later.pop()
            row.later = False
            self.delayed -= 1
            self._offer(row)
            moved = True
        return moved

    def pile(self, newest: bool) -> Pile:
        return self._oldest if not newest or self._newest is None else self._newest

    def sort_newest(self, rows: Iterable[Row]) -> None:
        """Begin to keep the order that ``claim(newest=True)`` needs."""
        if self._newest is None:
            self._newest = Pile()
            for row in rows:
                if row.line is self and row.job.status is Status.QUEUED and not row.later:
                    self._newest.push(_newest_first(row), row)

    def _offer(self, row: Row) -> None:
        self._oldest.push(_claim_order(row), row)
        if self._newest is not None:
            self._newest.push(_newest_first(row), row)


class Lane:
    """Who holds a lane, and the due jobs that were passed over because of it.

    The holder is running, or has begun and waits for its next run. When the lane becomes free, one
    job of each line is let go: the others could not start beside it anyway.
    """

    __slots__ = ("_parked", "holder", "live")

    def __init__(self) -> None:
        self.holder: Row | None = None
        self.live = 0
        self._parked: dict[tuple[Line, bool], Pile] = {}

    def park(self, key: Any, row: Row, newest: bool) -> None:
        self._parked.setdefault((row.line, newest), Pile()).push(key, row)

    def let_go(self) -> dict[str, None]:
        """Give one parked job back to each line, if the lane is free; the queues that got one."""
        queues: dict[str, None] = {}
        if self.holder is not None:
            return queues
        for (line, newest), parked in list(self._parked.items()):
            top = parked.top()
            if top is None:
                del self._parked[line, newest]
                continue
            line.pile(newest).push(top[0], parked.pop())
            queues[line.queue] = None
        return queues
