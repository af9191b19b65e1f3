"""What is taken comes back: the same value, of the same type, all the way down."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NewType, Optional, TypeVar, Union
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.shapes import (
    Box,
    Color,
    Corner,
    Counted,
    IntBox,
    Label,
    Level,
    ListBox,
    Movie,
    Names,
    Node,
    Order,
    Pair,
    Parcel,
    Patch,
    Person,
    Point,
    Rights,
    Row,
    Team,
    Unequal,
    carries,
)

from outlast.codec import ItemCodec

UserId = NewType("UserId", int)
Bound = TypeVar("Bound", bound=str)
BERLIN = ZoneInfo("Europe/Berlin")
CANARY = ("UTC", "Europe/Berlin", "America/St_Johns", "Africa/Monrovia", "Asia/Kathmandu")

texts = st.text(st.characters(codec="utf-8"), max_size=20)
ints = st.integers() | st.integers(-(2**80), 2**80)
floats = st.floats(allow_nan=False, allow_infinity=False)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
offsets = st.integers(-86399, 86399).map(lambda s: dt.timezone(timedelta(seconds=s)))
zones = st.none() | offsets | st.sampled_from(CANARY).map(ZoneInfo) | st.just(dt.UTC)
folds = st.sampled_from((0, 1))
moments = st.builds(
    lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.datetimes(), zones, folds
)
times = st.builds(
    lambda at, zone, fold: at.replace(tzinfo=zone, fold=fold), st.times(), zones, folds
)
plain = st.recursive(
    st.none() | st.booleans() | ints | floats | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
orders = st.builds(Order, ints, decimals, moments, st.sets(texts, max_size=3))
nodes = st.recursive(
    st.builds(Node, ints, st.just([])),
    lambda inner: st.builds(Node, ints, st.lists(inner, max_size=2)),
    max_leaves=6,
)

KINDS: dict[Any, st.SearchStrategy[Any]] = {
    Any: plain,
    object: plain,
    None: st.none(),
    bool: st.booleans(),
    int: ints,
    float: floats,
    str: texts,
    bytes: st.binary(max_size=40),
    bytearray: st.binary(max_size=40).map(bytearray),
    Decimal: decimals,
    UUID: st.uuids(),
    date: st.dates(),
    datetime: moments,
    time: times,
    timedelta: st.timedeltas(),
    ZoneInfo: st.sampled_from(CANARY).map(ZoneInfo),
    Path: texts.filter(lambda text: "\0" not in text).map(Path),
    PurePosixPath: texts.map(PurePosixPath),
    UserId: ints,
    Bound: texts,
    Color: st.sampled_from(Color),
    Level: st.sampled_from(Level),
    Rights: st.integers(0, 7).map(Rights),
    Corner: st.sampled_from(Corner),
    Literal[1, True, "a", None, b"x", Color.RED]: st.sampled_from(
        (1, True, "a", None, b"x", Color.RED)
    ),
    list: st.lists(plain, max_size=3),
    list[int]: st.lists(ints),
    list[float]: st.lists(floats),
    list[Decimal]: st.lists(decimals),
    list[list[date]]: st.lists(st.lists(st.dates(), max_size=3), max_size=3),
    Sequence[str]: st.lists(texts),
    tuple: st.lists(plain, max_size=3).map(tuple),
    tuple[()]: st.just(()),
    tuple[int, ...]: st.lists(ints).map(tuple),
    tuple[int, tuple[int, int]]: st.tuples(ints, st.tuples(ints, ints)),
    set[int]: st.sets(ints),
    set[str]: st.sets(texts),
    set[float]: st.sets(floats),
    AbstractSet[date]: st.sets(st.dates()),
    frozenset[Color]: st.frozensets(st.sampled_from(Color)),
    set[tuple[int, str]]: st.sets(st.tuples(ints, texts)),
    frozenset[frozenset[int]]: st.frozensets(st.frozensets(ints, max_size=3), max_size=3),
    set[int | str | None]: st.sets(ints | texts | st.none()),
    dict: st.dictionaries(texts, plain, max_size=3),
    dict[str, int]: st.dictionaries(texts, ints),
    dict[int, str]: st.dictionaries(ints, texts),
    dict[bool, int]: st.dictionaries(st.booleans(), ints),
    dict[float, int]: st.dictionaries(floats, ints),
    dict[None, int]: st.dictionaries(st.none(), ints),
    dict[Color, UUID]: st.dictionaries(st.sampled_from(Color), st.uuids()),
    dict[Level, int]: st.dictionaries(st.sampled_from(Level), ints),
    dict[date, Decimal]: st.dictionaries(st.dates(), decimals),
    dict[tuple[int, str], list[int]]: st.dictionaries(st.tuples(ints, texts), st.lists(ints)),
    dict[int | str, int]: st.dictionaries(ints | texts, ints),
    Mapping[str, dict[int, bytes]]: st.dictionaries(
        texts, st.dictionaries(ints, st.binary(max_size=9), max_size=3), max_size=3
    ),
    Optional[datetime]: st.none() | moments,  # noqa: UP045  the old way to write it
    int | str | None: ints | texts | st.none(),
    int | float: ints | floats,
    int | Decimal: ints | decimals,
    str | Decimal | UUID: texts | decimals | st.uuids(),
    UserId | int | str: ints | texts,
    UserId | None: ints | st.none(),
    date | datetime: st.dates() | moments,
    list[int] | tuple[int, ...] | set[int]: st.lists(ints) | st.sets(ints),
    Union[list[float], list[int]]: st.lists(ints) | st.lists(floats),  # noqa: UP007
    Order | Point | None: orders | st.builds(Point, x=ints) | st.none(),
    dict[str, int] | Point: st.dictionaries(texts, ints) | st.builds(Point, x=ints, y=ints),
    Literal["auto"] | int: st.just("auto") | ints,
    Literal["auto"] | str: st.just("auto") | texts,
    Annotated[int, msgspec.Meta(ge=0)]: st.integers(0),
    Annotated[list[Point], msgspec.Meta(max_length=2), "a note"]: st.lists(
        st.builds(Point, x=ints), max_size=2
    ),
    Order: orders,
    Point: st.builds(Point, x=ints, y=ints),
    Node: nodes,
    Counted: st.builds(Counted, texts),
    Unequal: st.builds(Unequal, texts),
    Box[date]: st.builds(Box, st.dates()),
    Box[Box[int]]: st.builds(Box, st.builds(Box, ints)),
    IntBox[Decimal]: st.builds(IntBox, ints, st.lists(decimals, max_size=3)),
    Parcel: st.builds(Parcel, floats, texts, st.none() | times),
    Label: st.builds(Label, texts),
    Row: st.builds(Row, ints, st.binary(max_size=9)),
    Patch: st.builds(
        Patch, st.just(msgspec.UNSET) | texts, st.just(msgspec.UNSET) | st.none() | ints
    ),
    Pair: st.builds(Pair, ints, decimals),
    Movie: st.fixed_dictionaries({"title": texts}, optional={"year": ints}),
    list[Movie]: st.lists(st.fixed_dictionaries({"title": texts}, optional={"year": ints})),
    Names: st.lists(texts).map(Names),
}


@pytest.mark.parametrize("annotation", KINDS, ids=str)
@settings(max_examples=20)
@given(data=st.data())
def test_every_kind_comes_back(annotation: Any, data: st.DataObject) -> None:
    assert carries(annotation, data.draw(KINDS[annotation]))


@settings(max_examples=20)
@given(data=st.data())
def test_nested_kinds_come_back(data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(list(KINDS))) for _ in range(2))
    value = (
        data.draw(st.lists(KINDS[one], max_size=3)),
        data.draw(st.dictionaries(ints, KINDS[other], max_size=3)),
        None,
    )
    assert carries(tuple[list[one], dict[int, other], Box[one] | None], value)  # type: ignore[valid-type]


def test_a_variable_of_a_class_is_not_its_base_s() -> None:
    assert carries(ListBox, ListBox(["a", 1]))
    assert carries(ListBox[Decimal], ListBox([Decimal(1)]))


def test_a_field_that_was_set_by_hand_comes_back_as_set() -> None:
    counted = Counted("abc")
    counted.length = 7
    assert carries(Counted, counted)


@pytest.mark.parametrize("value", [{"str": 5}, {"Decimal": 5}, {}, "a", Decimal(1)], ids=repr)
def test_a_dict_that_looks_like_a_member_of_the_union(value: Any) -> None:
    assert carries(str | Decimal | dict[str, int], value)


class TestTheListOfCase36:
    """Tuples as lists, int keys as texts, dates as datetimes: what goes wrong elsewhere."""

    VALUES: tuple[tuple[Any, Any], ...] = (
        (tuple[int, tuple[int, int]], (1, (2, 3))),
        (dict[int, str], {0: "a"}),
        (date, date(2024, 2, 29)),
        (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1)),
        (Decimal, Decimal("0.10")),
        (UUID, UUID("12345678-1234-5678-1234-567812345678")),
        (bytes, bytes(range(256))),
        (set[int], {3, 1, 2}),
        (int, 2**70),
        (str, "\N{PILE OF POO}\0\N{COMBINING ACUTE ACCENT}"),
    )

    @pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda v: str(v)[:30])
    def test_comes_back_when_annotated(self, annotation: Any, value: Any) -> None:
        assert carries(annotation, value)

    @pytest.mark.parametrize("value", [2**70, "\N{PILE OF POO}"])
    def test_comes_back_without_annotation_where_json_can(self, value: Any) -> None:
        assert carries(Any, value)


class TestZones:
    @pytest.mark.parametrize("fold", [0, 1])
    @pytest.mark.parametrize(
        "wall", [datetime(2024, 10, 27, 2, 30), datetime(2024, 3, 31, 2, 30), datetime(2024, 1, 1)]
    )
    def test_wall_clock_zone_and_fold_come_back(self, wall: datetime, fold: int) -> None:
        at = wall.replace(tzinfo=BERLIN, fold=fold)
        assert carries(datetime, at)
        assert carries(datetime, at.astimezone(dt.UTC))

    def test_the_two_hours_of_a_fold_stay_apart(self) -> None:
        first = datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
        second = first.replace(fold=1)
        assert first.astimezone(dt.UTC) != second.astimezone(dt.UTC)
        assert carries(tuple[datetime, datetime], (first, second))

    def test_utc_by_name_and_utc_by_offset_are_two_zones(self) -> None:
        assert carries(datetime, datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")))
        assert carries(datetime, datetime(2024, 1, 1, tzinfo=dt.UTC))

    @pytest.mark.parametrize("edge", [datetime.min, datetime.max, datetime(1880, 1, 1, 12, 0, 1)])
    def test_edges(self, edge: datetime) -> None:
        assert carries(datetime, edge)
        assert carries(datetime, edge.replace(tzinfo=BERLIN))

    @settings(max_examples=30)
    @given(name=st.sampled_from(sorted(zoneinfo.available_timezones())), at=st.datetimes())
    def test_every_zone_of_this_machine(self, name: str, at: datetime) -> None:
        assert carries(datetime, at.replace(tzinfo=ZoneInfo(name)))


def len_of(value: int) -> str:
    return f"{value.bit_length()} bits"


class TestNumbers:
    def test_an_int_for_a_float_arrives_as_the_float(self) -> None:
        codec = ItemCodec(list[float] | None)
        back = codec.decode(codec.encode([1, 2.5]))
        assert [type(one) for one in back] == [float, float]
        assert back == [1.0, 2.5]

    @pytest.mark.parametrize(
        "value", [10**4300 - 1, 1 - 10**4299, 2**64, -(2**63) - 1, 0], ids=len_of
    )
    def test_ints_up_to_the_limit(self, value: int) -> None:
        assert carries(int, value)
        assert carries(Any, value)

    @pytest.mark.parametrize("value", [-0.0, 5e-324, 1.7976931348623157e308, 1e16, 0.1])
    def test_floats_bit_by_bit(self, value: float) -> None:
        assert carries(float, value)
        assert carries(Any, [value])

    @pytest.mark.parametrize("text", ["0", "-0", "1E+5", "0.10", "1E-999999", "1" * 60])
    def test_decimals_digit_by_digit(self, text: str) -> None:
        assert carries(Decimal, Decimal(text))


class TestModels:
    @settings(max_examples=30)
    @given(name=texts, cash=st.decimals(-(10**9), 10**9, places=2), born=st.datetimes())
    def test_pydantic_models_come_back(self, name: str, cash: Decimal, born: datetime) -> None:
        born = born.replace(fold=0)  # pydantic loses it, so it would be refused
        person = Person(fullName=name, cash=cash, born=born)
        assert carries(Person, person)
        assert carries(Team | None, Team(people=[person], lead=person))
        assert carries(Person | Team, person)
