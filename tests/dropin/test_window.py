"""What is in memory is never handed out before what is outside and comes before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.job import Claim, Job
from outlast.queue.window import Entry, Fifo, Lifo, Ranked

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.queue.window import Window

Item = tuple[bytes, int]
"""A rank, and the place in the store."""


class Model:
    """A store and a window on it, driven as `Supply` drives them."""

    def __init__(self, window: Window, order: Callable[[Item], Any]) -> None:
        self.window = window
        self.order = order
        self.stored: list[Item] = []
        self.flight: tuple[list[Item], int] | None = None
        self.number = 0

    def put(self, rank: bytes) -> None:
        self.number += 1
        self.stored.append((rank, self.number))
        self.window.outside(rank)

    def begin(self, asked: int) -> None:
        if self.flight is None:
            if self.window.newest:
                self.spill(0)
            self.window.begin()
            self.flight = ([], asked)

    def claim(self) -> None:
        """The claim reaches the store, at some moment between its begin and its landing."""
        if self.flight is not None and not self.flight[0]:
            taken = sorted(self.stored, key=self.order)[: self.flight[1]]
            self.stored = [item for item in self.stored if item not in taken]
            self.flight = (taken, self.flight[1])

    def land(self) -> None:
        if self.flight is not None:
            self.claim()
            taken, asked = self.flight
            self.flight = None
            entries = [Entry(Claim(Job(id=str(n), rank=rank), b""), (rank, n)) for rank, n in taken]
            self.window.land(entries, full=len(taken) >= asked)

    def spill(self, bound: int) -> None:
        self.stored += [entry.item for entry in self.window.spill(bound)]

    def pop(self) -> None:
        if not self.window.sure():
            return
        assert self.window.ready() >= 1
        everything = [*self.stored, *(entry.item for entry in self.window)]
        first = self.window.pop().item
        if self.flight is None:
            assert first == min(everything, key=self.order)
        else:  # what is on its way isn't known here, and may come before
            assert first == min([*everything], key=self.order) or self.flight[0]


steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from([b"a", b"b", b"c", b"d"])),
    st.tuples(st.just("begin"), st.integers(1, 3)),
    st.tuples(st.just("claim"), st.none()),
    st.tuples(st.just("land"), st.none()),
    st.tuples(st.just("pop"), st.none()),
    st.tuples(st.just("spill"), st.integers(0, 3)),
)

ORDERS: dict[str, tuple[type, Callable[[Item], Any]]] = {
    "first in first out": (Fifo, lambda item: item[1]),
    "last in first out": (Lifo, lambda item: -item[1]),
    "lowest first": (Ranked, lambda item: item),
}


Script = list[tuple[str, bytes | int | None]]
PUT_BEHIND_A_CLAIM: Script = [
    *(("put", b"b"), ("begin", 2), ("claim", None)),
    *(("put", b"a"), ("land", None), ("pop", None)),
]
SPILLED_BEHIND_A_CLAIM: Script = [
    *(("put", b"a"), ("begin", 3), ("land", None), ("put", b"d"), ("begin", 3), ("claim", None)),
    *(("spill", 0), ("land", None), ("pop", None)),
]


@pytest.mark.parametrize("name", ORDERS)
@example(script=PUT_BEHIND_A_CLAIM)
@example(script=SPILLED_BEHIND_A_CLAIM)
@given(script=st.lists(steps, max_size=60))
def test_only_what_comes_first_is_handed_out(name: str, script: Script) -> None:
    kind, order = ORDERS[name]
    model = Model(kind(), order)
    for action, argument in script:
        if action == "spill" and name != "lowest first":
            continue  # given back to a place of its own only where the rank tells it
        call = getattr(model, action)
        call() if argument is None else call(argument)
    # Whatever happened before: everything comes out in the end, in order.
    model.land()
    model.spill(0)
    model.window.doubt()
    while model.stored or len(model.window):
        model.begin(2)
        model.land()
        while model.window.sure():
            model.pop()


def test_what_is_spilled_is_what_would_have_come_last() -> None:
    for kind, order in ORDERS.values():
        model = Model(kind(), order)
        for rank in (b"c", b"a", b"d", b"b"):
            model.put(rank)
        model.begin(10)
        model.land()
        assert len(model.window) == 4
        shown = [entry.item for entry in model.window]
        spilled = [entry.item for entry in model.window.spill(2)]
        assert sorted(spilled, key=order) == shown[2:]
        assert [entry.item for entry in model.window] == shown[:2]


def test_after_a_doubt_nothing_is_sure() -> None:
    for name, (kind, order) in ORDERS.items():
        model = Model(kind(), order)
        model.put(b"a")
        model.begin(10)
        model.land()
        assert model.window.sure()
        model.window.doubt()
        assert model.window.sure() == (name == "first in first out")
        assert (model.window.ready() > 0) == model.window.sure()
