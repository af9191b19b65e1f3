"""The items of a queue that are in memory: claimed, decoded, and not given to anybody yet.

The rest is in the store, and may hold what comes before the head of a window: a later item of a
higher rank, or a newer one in a stack. So a window knows how much of itself is *sure*: known to
come before everything outside. Only that is handed out; when it is used up, a claim has to look
at the store again.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush, nlargest
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from outlast.job import Claim

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Entry", "Fifo", "Lifo", "Ranked", "Window"]


class Entry(Struct, eq=False):
    """One claimed item. ``paid``: it has left the store already, and lives only here."""

    claim: Claim
    item: Any
    owner: object = None
    paid: bool = False


class Window(Protocol):
    """What the three orders have in common.

    A claim is announced by ``begin`` and received by ``land``: what was put in between may or may
    not be part of it.
    """

    newest: bool
    """Whether claims take what was added last."""
    settled: bool
    """Whether nothing that is added later can come before what is here: ``sure`` says no more
    than whether there is anything."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]:
        """All that is here, in the order in which it would be handed out."""
        ...

    def sure(self) -> bool:
        """Whether the first of them comes before everything that is outside."""
        ...

    def ready(self) -> int:
        """How many of them do."""
        ...

    def pop(self) -> Entry:
        """The first of them. Only where ``sure``."""
        ...

    def begin(self) -> None:
        """A claim is on its way."""
        ...

    def land(self, entries: Sequence[Entry], *, full: bool) -> None:
        """It arrived, in claim order. ``full``: there may be more outside."""
        ...

    def outside(self, rank: bytes) -> None:
        """An item went into the store: put by us, or given back."""
        ...

    def doubt(self) -> None:
        """Others may have put items: nothing is sure until the next claim."""
        ...

    def spill(self, bound: int) -> list[Entry]:
        """Take out what would be handed out last, so that at most ``bound`` stay."""
        ...


class Fifo(deque["Entry"]):
    """First in, first out. Whatever is added later comes later."""

    newest = False
    settled = True

    pop = deque.popleft

    def sure(self) -> bool:
        return bool(self)

    def ready(self) -> int:
        return len(self)

    def begin(self) -> None:
        """Nothing that is added later matters."""

    def land(self, entries: Sequence[Entry], *, full: bool) -> None:
        self.extend(entries)

    def outside(self, rank: bytes) -> None:
        """It comes later, or was here and is to come later."""

    def doubt(self) -> None:
        """There is none."""

    def spill(self, bound: int) -> list[Entry]:
        over = [deque.pop(self) for _ in range(len(self) - bound)]
        over.reverse()
        return over


class Lifo:
    """Last in, first out. Nothing tells how old what is outside is, compared with what is here.

    So a claim is made only once everything here has been given back, but for what can't be.
    """

    newest = True
    settled = False

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._sure = False
        self._late = False

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return reversed(self._entries)

    def sure(self) -> bool:
        return self._sure and bool(self._entries)

    def ready(self) -> int:
        return len(self._entries) if self._sure else 0

    def pop(self) -> Entry:
        return self._entries.pop()

    def begin(self) -> None:
        self._late = False

    def land(self, entries: Sequence[Entry], *, full: bool) -> None:
        self._entries.extend(reversed(entries))
        self._sure = not self._late

    def outside(self, rank: bytes) -> None:
        self._sure = False
        self._late = True

    def doubt(self) -> None:
        self._sure = False

    def spill(self, bound: int) -> list[Entry]:
        over = max(0, len(self._entries) - bound)
        spilled = self._entries[:over]
        del self._entries[:over]
        return spilled


_FIRST, _LAST = b"", b"\xff"
"""Before and after every rank."""


class Ranked:
    """Lowest rank first, then first in first out. Nothing outside has a rank below ``_bound``."""

    newest = False
    settled = False

    def __init__(self) -> None:
        self._heap: list[tuple[bytes, int, Entry]] = []
        self._count = 0
        self._bound = _FIRST
        self._late = _LAST

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, _, entry in sorted(self._heap, key=_place))

    def sure(self) -> bool:
        return bool(self._heap) and self._heap[0][0] <= self._bound

    def ready(self) -> int:
        if not self.sure():
            return 0
        return sum(rank <= self._bound for rank, _, _ in self._heap)

    def pop(self) -> Entry:
        return heappop(self._heap)[2]

    def begin(self) -> None:
        self._late = _LAST

    def land(self, entries: Sequence[Entry], *, full: bool) -> None:
        for entry in entries:
            self._count += 1
            heappush(self._heap, (entry.claim.job.rank, self._count, entry))
        last = entries[-1].claim.job.rank if full and entries else _LAST
        self._bound = min(last, self._late)

    def outside(self, rank: bytes) -> None:
        self._bound = min(self._bound, rank)
        self._late = min(self._late, rank)

    def doubt(self) -> None:
        self._bound = _FIRST

    def spill(self, bound: int) -> list[Entry]:
        over = nlargest(len(self._heap) - bound, self._heap, key=_place)
        spilled = [entry for _, _, entry in reversed(over)]
        self._without(spilled)
        if spilled:
            self.outside(spilled[0].claim.job.rank)
        return spilled

    def _without(self, entries: Iterable[Entry]) -> None:
        gone = {id(entry) for entry in entries}
        if gone:
            self._heap = [item for item in self._heap if id(item[2]) not in gone]
            heapify(self._heap)


def _place(item: tuple[bytes, int, Entry]) -> tuple[bytes, int]:
    return item[:2]
