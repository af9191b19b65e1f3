"""The rank of a value sorts as the value does: compared with Python's own order."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.queue.rank import kind, rank

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(10**300), max_value=10**300),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False),
    st.booleans(),
    st.builds(
        lambda n, d: float(n) + d, st.integers(-(2**60), 2**60), st.sampled_from([0, 0.5, 1])
    ),
)
texts = st.text(alphabet=st.characters(), max_size=20)
blobs = st.binary(max_size=12)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
scalars: list[st.SearchStrategy[Any]] = [
    numbers,
    texts,
    blobs,
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=offsets),
    st.times(),
    st.timedeltas(),
]


@dataclass(order=True, frozen=True)
class Ticket:
    urgency: int
    name: str
    note: Any = field(compare=False, default=None)


class Packet(msgspec.Struct, order=True, frozen=True):
    urgency: int
    name: str


Pair = namedtuple("Pair", "first second")

small = st.integers(-3, 3)
few = st.sampled_from(["", "a", "a\0", "b"])
shapes: list[st.SearchStrategy[Any]] = [
    *scalars,
    st.tuples(numbers, texts),
    st.lists(small, max_size=4),
    st.lists(small, max_size=4).map(tuple),
    st.lists(few, max_size=3).map(tuple),
    st.tuples(few, st.tuples(small, blobs), st.datetimes(timezones=offsets)),
    st.lists(st.lists(few, max_size=3).map(tuple), max_size=3).map(tuple),
    st.builds(Pair, small, few),
    st.builds(Ticket, small, few, small),
    st.builds(Packet, small, few),
]


@given(st.sampled_from(shapes).flatmap(lambda shape: st.tuples(shape, shape)))
@example(pair=(2**53 + 1, float(2**53)))
@example(pair=(Decimal("0.1"), 0.1))
@example(pair=(-0.0, 0))
@example(pair=(Decimal("-0.00"), 0))
@example(pair=(5e-324, Decimal("1e-400")))
@example(pair=(-math.inf, -(10**400)))
@example(pair=(Decimal("1E+999999"), 10**4000))
@example(pair=(("a", 1), ("a\0", 0)))
@example(pair=(Ticket(1, "a", 1), Ticket(1, "a", 2)))
def test_two_ranks_compare_as_the_two_values(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert (rank(one) < rank(other)) == (one < other)
    assert (rank(one) == rank(other)) == (not one < other and not other < one)


@given(st.sampled_from(shapes).flatmap(lambda shape: st.lists(shape, max_size=12)))
def test_sorting_by_rank_is_sorting(values: list[Any]) -> None:
    assert sorted(values, key=rank) == sorted(values)


def test_subclasses_sort_as_their_base() -> None:
    class Level(IntEnum):
        LOW = 1
        HIGH = 2

    class Name(StrEnum):
        A = "a"

    assert rank(Level.HIGH) == rank(2)
    assert rank(Name.A) == rank("a")
    assert rank(Inherited(1, "a")) == rank(Ticket(1, "a"))
    assert rank(True) == rank(1) == rank(1.0) == rank(Decimal(1))


class Unordered:
    pass


class Odd(int):
    def __lt__(self, other: object) -> bool:
        return False


@dataclass
class Plain:
    n: int


class Overridden(Ticket):
    def __lt__(self, other: object) -> bool:
        return False


class Inherited(Ticket):
    pass


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        None, {}, {"a": 1}, {1}, Unordered(), Odd(1), Plain(1), Colour.RED, Fraction(1, 3), 1j,
        math.nan, Decimal("nan"), (None, 1), ({}, 1), [math.nan],
        time(1, tzinfo=UTC), 10**5000, int, print, Overridden(1, "a"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_has_no_order_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError) as caught:
        rank(value)
    assert caught.type is TypeError, "no class that users can't name"


def test_what_nests_too_deep_or_is_too_long_is_a_type_error() -> None:
    endless: list[Any] = [1]
    endless.insert(0, endless)
    with pytest.raises(TypeError, match="nests too deep"):
        rank(endless)
    with pytest.raises(TypeError, match=r"str has an order of 1048578 bytes.*key="):
        rank("x" * (1 << 20))


def test_the_error_names_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"dict has no order that can be stored.*key="):
        rank({})


def test_a_later_element_without_an_order_only_ends_the_comparison() -> None:
    """The textbook's entries are (priority, count, whatever), and the last is never compared."""
    entries: list[tuple[Any, ...]] = [(1, 0, {"x": 1}), (0, 1, {}), (1, 2, None), (0, 3, [])]
    assert [entry[1] for entry in sorted(entries, key=rank)] == [1, 3, 0, 2]
    assert rank((1, {"a": 1}, 1)) == rank((1, {"b": 2}, 0))
    assert rank((1,)) < rank((1, {})) < rank((1, 0))


def test_datetimes_of_one_zone_are_moments() -> None:
    early = datetime(2024, 10, 27, 2, 30, tzinfo=timezone(timedelta(hours=2)))
    late = datetime(2024, 10, 27, 2, 0, tzinfo=timezone(timedelta(hours=1)))
    assert rank(early) < rank(late)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (-math.inf, "a number"), (0, "a number"), ("x", "text"), (b"x", "bytes"),
        (date(2024, 1, 1), "a date"), (datetime(2024, 1, 1), "a datetime without a zone"),
        (datetime(2024, 1, 1, tzinfo=UTC), "a datetime with a zone"), (time(1), "a time"),
        (timedelta(1), "a timedelta"), ((), "a tuple"), ([], "a list"),
        (Ticket(1, "a"), "a dataclass"),
    ],
    ids=repr,
)  # fmt: skip
def test_a_rank_tells_its_kind(value: object, words: str) -> None:
    assert kind(rank(value)) == words


def test_ranks_are_short() -> None:
    """A rank is kept for each item: a number and a word should cost little more than themselves."""
    assert len(rank(7)) == 4
    assert len(rank((7, "word"))) <= 13
