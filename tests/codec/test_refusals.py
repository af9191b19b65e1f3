"""What would come back changed is refused at enqueue, and the parameter is named."""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from tests.codec.shapes import (
    Box,
    Color,
    Counted,
    Label,
    Level,
    Login,
    Movie,
    Node,
    Pair,
    Parcel,
    Person,
    Point,
    Positive,
    Row,
    Shouting,
    Unequal,
    takes,
)

from outlast import EncodeError
from outlast.codec import ItemCodec, Signature

NAN, INF = float("nan"), float("inf")


class Text(str):
    pass


class Number(int):
    pass


class Many(list):  # type: ignore[type-arg]
    pass


class Words(enum.StrEnum):
    ONE = "one"


class Moment(datetime):
    pass


class Here(dt.tzinfo):
    """A zone of an unknown sort."""

    def utcoffset(self, at: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def tzname(self, at: datetime | None) -> str:
        return "here"

    def dst(self, at: datetime | None) -> timedelta:
        return timedelta(0)


class SubPoint(Point):
    pass


def unnamed_zone() -> ZoneInfo:
    for folder in zoneinfo.TZPATH:
        path = Path(folder, "Europe", "Berlin")
        if path.is_file():
            with path.open("rb") as file:
                return ZoneInfo.from_file(file)
    pytest.skip("no time zone files on this machine")


# Each would be something else after a trip through JSON, if JSON takes it at all.
NOT_PLAIN: list[Any] = [
    (1, 2), {1: "a"}, {None: 1}, {True: 1}, {1.5: 1}, {(1, 2): 3}, {1}, frozenset(), b"x",
    bytearray(b"x"), date(2024, 2, 29), datetime(2024, 2, 29), time(1), timedelta(1),
    Decimal("0.10"), UUID(int=1), Color.RED, Level.LOW, Words.ONE, {Words.ONE: 1}, Text("a"),
    {Text("a"): 1}, Number(1), Many(), NAN, INF, -INF, 1j, object(), Point(x=1), Row(1),
    Pair(1), Person(fullName="a"), ZoneInfo("UTC"), Path("a"), range(3), OrderedDict(),
    defaultdict(int), Counter(), deque(), iter([]), int, len, ..., msgspec.UNSET, 10**4300,
    -(10**4299), "\ud800", "a\udfffb", {"\ud800": 1}, memoryview(b"x"), NotImplemented,
]  # fmt: skip

WRONG: list[tuple[Any, Any]] = [
    (str, 1), (str, None), (str, b"a"), (str, Text("a")), (str, Words.ONE), (str, "\ud800"),
    (int, "1"), (int, 1.0), (int, True), (int, Number(1)), (int, Level.LOW), (int, 10**4300),
    (float, "1"), (float, NAN), (float, INF), (float, True), (float, 2**53 + 1), (float, 10**400),
    (bool, 1), (bool, None), (None, 0), (None, False),
    (bytes, "a"), (bytes, bytearray(b"a")), (bytearray, b"a"),
    (Decimal, 1), (Decimal, 1.5), (Decimal, "1"), (Decimal, Decimal("NaN")),
    (Decimal, Decimal("-Infinity")), (Decimal, Decimal("sNaN")),
    (UUID, "00000000-0000-0000-0000-000000000001"), (Path, "a"), (Path, Path("\udcff")),
    (date, datetime(2024, 1, 1)), (date, "2024-01-01"), (datetime, date(2024, 1, 1)),
    (datetime, Moment(2024, 1, 1)), (datetime, 0), (time, datetime(2024, 1, 1)), (timedelta, 1.5),
    (datetime, datetime(2024, 1, 1, tzinfo=Here())),
    (datetime, datetime(2024, 1, 1, tzinfo=dt.timezone(timedelta(hours=1), "home"))),
    (time, time(1, tzinfo=Here())),
    (ZoneInfo, "UTC"), (ZoneInfo, dt.UTC),
    (Color, "red"), (Color, Level.LOW), (Level, 1), (Literal["a", 1], "b"), (Literal[1], True),
    (Literal["a"], Text("a")),
    (list[int], (1,)), (list[int], [1, "2"]), (list[int], [True]), (list[int], None),
    (list[int], Many([1])), (list[int], [10**4300]), (list[float], [NAN]), (list[str], ["\ud800"]),
    (list, [(1,)]), (Sequence[int], (1, 2)), (Sequence[str], "abc"),
    (tuple[int, int], (1,)), (tuple[int, int], [1, 2]), (tuple[int, int], (1, "2")),
    (tuple[int, int], Pair(1)), (tuple[()], (1,)), (tuple[int, ...], [1]), (tuple, [1]),
    (set[int], frozenset((1,))), (set[int], {"a"}), (frozenset[int], {1}), (set[str], {"\ud800"}),
    (set[tuple[str]], {("\ud800",), ("a",)}),
    (dict[int, str], {"1": "a"}), (dict[int, str], {1: 2}), (dict[str, int], {1: 1}),
    (dict[str, int], OrderedDict()), (dict[str, float], {"a": NAN}), (dict, {1: 1}),
    (dict[tuple[str], int], {("\ud800",): 1}), (dict[Any, int], {1: 1}),
    (int | None, "1"), (int | Decimal, "1"), (int | Decimal, 1.5), (date | datetime, "2024-01-01"),
    (list[int] | list[str], [1, "a"]), (float | str, NAN), (Point | None, SubPoint(x=1)),
    (Annotated[int, msgspec.Meta(ge=0)], -1), (Annotated[str, msgspec.Meta(max_length=1)], "ab"),
    (Annotated[list[Point], msgspec.Meta(max_length=1)], [Point(x=1), Point(x=2)]),
    (Point, SubPoint(x=1)), (Point, {"x": 1}), (Point, Point(x="1")),  # type: ignore[arg-type]
    (Point, Point(x=Number(1))), (Node, Node(1, [Node(2, [None])])),  # type: ignore[list-item]
    (Shouting, Shouting("a")), (Box[int], Box("a")), (Parcel, Parcel(NAN)), (Row, Row("1")),  # type: ignore[arg-type]
    (Pair, (1, Decimal(0))), (Pair, Pair(1, 2)),  # type: ignore[arg-type]
    (Movie, []),
    (Movie, {}), (Movie, {"title": "a", "more": 1}), (Movie, {"title": 1}), (Movie, {1: "a"}),
    (Person, {"name": "a"}), (Login, Login(password="p")),  # type: ignore[arg-type]
    (Person, Person(fullName="a", born=datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))),
    (Person, Person.model_construct(name="a", born=None, cash=1.0)),
]  # fmt: skip


def named(value: object) -> str:
    """The same in every process, so no address; ints may be too long to print."""
    return type(value).__name__


@pytest.mark.parametrize("value", NOT_PLAIN, ids=named)
@pytest.mark.parametrize("annotation", [Any, object, inspect.Parameter.empty])
def test_without_annotation_only_json_is_taken(annotation: Any, value: Any) -> None:
    signature = takes(annotation)
    if annotation is inspect.Parameter.empty:
        signature = Signature(lambda x: None, name="work")
    for inside in (value, [value], {"a": value}, [[1, {"b": [value]}]]):
        with pytest.raises(EncodeError, match=r"^work\(\): argument 'x'"):
            signature.encode((inside,), {})
        with pytest.raises(TypeError, match=r"^the result of work\(\)"):
            signature.encode_result(inside)
        with pytest.raises(EncodeError, match=r"^the item"):
            ItemCodec().encode(inside)


@pytest.mark.parametrize(("annotation", "value"), WRONG, ids=[f"{a}-{named(v)}" for a, v in WRONG])
def test_a_value_of_another_type_is_refused(annotation: Any, value: Any) -> None:
    signature = takes(annotation)
    with pytest.raises(EncodeError, match=r"^work\(\): argument 'x'"):
        signature.encode((value,), {})
    with pytest.raises(EncodeError, match=r"^work\(\): argument 'x'"):
        signature.encode((), {"x": value})
    with pytest.raises(EncodeError, match=r"^the result of work\(\)"):
        signature.encode_result(value)
    with pytest.raises(EncodeError, match=r"^the item"):
        ItemCodec(annotation).encode(value)
    if annotation is not None:
        with pytest.raises(EncodeError, match=r"^work\(\): argument 'x'"):
            takes(tuple[int, annotation]).encode(((1, value),), {})


class TestMessages:
    """They say where the value is, what was found and what to do; never the value itself."""

    def refusal(self, annotation: Any, value: Any) -> str:
        with pytest.raises(EncodeError) as caught:
            takes(annotation).encode((value,), {})
        return str(caught.value)

    def test_the_way_to_the_value(self) -> None:
        said = self.refusal(dict[str, list[Node]], {"a": [Node(1), Node(2, [Node("x")])]})  # type: ignore[arg-type]
        assert said == "work(): argument 'x'[...][1].children[0].value: expected int, got str"
        said = self.refusal(dict[int, Movie], {1: {"title": 5}})
        assert said == "work(): argument 'x'[...]['title']: expected str, got int"
        assert "argument 'x' key: expected int, got str" in self.refusal(dict[int, int], {"a": 1})

    def test_what_to_do(self) -> None:
        assert "annotate it" in self.refusal(Any, (1, 2))
        assert "dict[key type, value type]" in self.refusal(Any, {1: 2})
        assert "annotate it as int" in self.refusal(float, 2**53 + 1)
        assert "use zoneinfo.ZoneInfo" in self.refusal(
            datetime, datetime(2024, 1, 1, tzinfo=Here())
        )
        assert "a subclass" in self.refusal(Point, SubPoint(x=1))
        assert "only finite" in self.refusal(Any, NAN)
        assert "lone surrogate" in self.refusal(str, "\ud800")
        assert "4300 digits" in self.refusal(int, 10**4300)
        assert "would come back changed" in self.refusal(Shouting, Shouting("a"))

    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (int, "hunter2"), (Any, {("hunter2",): 1}), (Any, Text("hunter2")),
            (Literal["a"], "hunter2"), (dict[str, int], {"hunter2": "x"}), (Any, {"hunter2": b""}),
            (str, "hunter2\ud800"), (Person, Person.model_construct(name="a", cash="hunter2")),
            (Shouting, Shouting("hunter2")), (int | Decimal, "hunter2"),
            (Annotated[str, msgspec.Meta(max_length=3)], "hunter2"),
        ],
    )  # fmt: skip
    def test_no_value_is_quoted(self, annotation: Any, value: Any) -> None:
        assert "hunter2" not in self.refusal(annotation, value)


def test_a_zone_without_a_name_is_refused() -> None:
    with pytest.raises(EncodeError, match="without a name"):
        takes(datetime).encode((datetime(2024, 1, 1, tzinfo=unnamed_zone()),), {})


def test_a_zone_that_only_claims_a_name_is_refused() -> None:
    for folder in zoneinfo.TZPATH:
        path = Path(folder, "Europe", "Berlin")
        if path.is_file():
            with path.open("rb") as file:
                zone = ZoneInfo.from_file(file, key="Home/Sofa")
            with pytest.raises(EncodeError, match="no such time zone"):
                takes(datetime).encode((datetime(2024, 1, 1, tzinfo=zone),), {})
            return
    pytest.skip("no time zone files on this machine")


def test_an_object_that_refuses_its_own_fields_is_refused() -> None:
    positive = Positive(1)
    positive.amount = -1
    with pytest.raises(EncodeError, match="refused its fields: ValueError: an amount is above"):
        takes(Positive).encode((positive,), {})


def test_an_object_without_one_of_its_fields_is_refused() -> None:
    hollow = object.__new__(Counted)
    with pytest.raises(EncodeError, match=r"argument 'x'\.name: can't be read"):
        takes(Counted).encode((hollow,), {})


def test_a_converter_that_already_ran_changes_nothing() -> None:
    assert Label("  a ").text == "a"
    takes(Label).encode((Label("  a "),), {})


def test_two_keys_that_json_can_t_tell_apart() -> None:
    value = {Unequal("a"): 1, Unequal("a"): 2}
    assert len(value) == 2
    with pytest.raises(EncodeError, match="argument 'x': two keys that are the same in JSON"):
        takes(dict[Unequal, int]).encode((value,), {})


def test_the_caller_s_value_is_not_touched() -> None:
    value = {"a": [1, {"b": 2.5}], "s": "t"}
    signature = takes(Any)
    (back,), _ = signature.decode(signature.encode((value,), {}))
    back["a"].append(3)
    assert value == {"a": [1, {"b": 2.5}], "s": "t"}
