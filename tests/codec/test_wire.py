"""The form on the wire, which waiting jobs and other programs depend on: it must not drift."""

from __future__ import annotations

import datetime as dt
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from tests.codec.shapes import (
    Color,
    Corner,
    Counted,
    Level,
    Movie,
    Names,
    Pair,
    Parcel,
    Patch,
    Person,
    Point,
    Rights,
    Row,
    Unequal,
    same,
)

from outlast import DecodeError
from outlast.codec import ItemCodec

BERLIN = ZoneInfo("Europe/Berlin")

FORMS: list[tuple[Any, Any, str]] = [
    (Any, {"b": [1, 2.0, None, True, "\N{GREEK SMALL LETTER ALPHA}"], "a": {}},
     '{"b":[1,2.0,null,true,"\N{GREEK SMALL LETTER ALPHA}"],"a":{}}'),
    (int, 2**70, "1180591620717411303424"),
    (float, 1, "1.0"),
    (bytes, b"\0\xff", '"AP8="'),
    (Decimal, Decimal("0.10"), '"0.10"'),
    (UUID, UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (PurePosixPath, PurePosixPath("a/b"), '"a/b"'),
    (date, date(2024, 2, 29), '"2024-02-29"'),
    (time, time(1, 2, 3, 4), '"01:02:03.000004"'),
    (time, time(1, 2, tzinfo=BERLIN), '"01:02:00[Europe/Berlin]"'),
    (timedelta, timedelta(days=1, seconds=2), '"P1DT2S"'),
    (datetime, datetime(2024, 2, 29, 1), '"2024-02-29T01:00:00"'),
    (datetime, datetime(2024, 2, 29, 1, tzinfo=dt.UTC), '"2024-02-29T01:00:00+00:00"'),
    (datetime, datetime(2024, 2, 29, 1, tzinfo=BERLIN),
     '"2024-02-29T01:00:00+01:00[Europe/Berlin]"'),
    (datetime, datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
     '"2024-10-27T02:30:00+01:00[Europe/Berlin][_fold=1]"'),
    (ZoneInfo, BERLIN, '"Europe/Berlin"'),
    (Color, Color.RED, '"red"'),
    (Level, Level.HIGH, "2"),
    (Rights, Rights.READ | Rights.RUN, "5"),
    (Corner, Corner.TOP, '"TOP"'),
    (Literal["a", 1], 1, "1"),
    (tuple[int, str], (1, "a"), '[1,"a"]'),
    (set[int], {3, 1, 2}, "[1,2,3]"),
    (set[str], {"b", "a"}, '["a","b"]'),
    (set[int | str], {"b", 2, 1}, '["b",1,2]'),
    (dict[int, str], {2: "b", 1: "a"}, '{"2":"b","1":"a"}'),
    (dict[date, int], {date(2024, 1, 1): 1}, '{"2024-01-01":1}'),
    (dict[tuple[int, int], int], {(1, 2): 3}, '{"[1,2]":3}'),
    (dict[int | str, int], {1: 1, "1": 2}, '{"1":1,"\\"1\\"":2}'),
    (int | None, None, "null"),
    (int | str | None, "a", '"a"'),
    (int | float, 1.0, "1.0"),
    (Literal["auto"] | str, "auto", '"auto"'),
    (int | Decimal, Decimal(1), '"1"'),
    (str | Decimal, "a", '{"str":"a"}'),
    (str | Decimal, Decimal(1), '{"Decimal":"1"}'),
    (date | datetime, date(2024, 1, 1), '{"date":"2024-01-01"}'),
    (Point | None, Point(x=1), '{"x":1,"y":0}'),
    (Point | Row, Point(x=1), '{"Point":{"x":1,"y":0}}'),
    (list[Point] | list[int], [1], '{"list[int]":[1]}'),
    (Row, Row(1, b"x"), '{"id":1,"blob":"eA=="}'),
    (Patch, Patch(visits=None), '{"visits":null}'),
    (Pair, Pair(1), '{"left":1,"right":"0"}'),
    (Parcel, Parcel(1.5, "q"), '{"weight":1.5,"_secret":"q","when":null}'),
    (Counted, Counted("abc"), '{"name":"abc","length":3}'),
    (Movie, {"title": "a"}, '{"title":"a"}'),
    (Person, Person(fullName="a"), '{"name":"a","born":null,"cash":"0"}'),
    (Names, Names(["a"]), '{"root":["a"]}'),
]  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "form"), FORMS, ids=[form for *_, form in FORMS])
def test_the_form(annotation: Any, value: Any, form: str) -> None:
    codec = ItemCodec(annotation)
    assert codec.encode(value) == form.encode()
    back = codec.decode(form.encode())
    assert same(back, float(value) if annotation is float else value)


@pytest.mark.parametrize(
    ("annotation", "data", "value"),
    [
        (float, b"1", 1.0),
        (float | None, b"1", 1.0),
        (int, b" 1\n", 1),
        (str, rb'"\ud83d\udca9"', "\N{PILE OF POO}"),
        (dict[str, int], b'{ "a" : 1, "\\u0062":2 }', {"a": 1, "b": 2}),
        (datetime, b'"2024-02-29T01:00:00Z"', datetime(2024, 2, 29, 1, tzinfo=dt.UTC)),
        # The wall clock and the zone count: rules may change while a job waits.
        (datetime, b'"2024-02-29T01:00:00+09:00[Europe/Berlin]"',
         datetime(2024, 2, 29, 1, tzinfo=BERLIN)),
        (Point, b'{"x":1}', Point(x=1)),
        (Movie, b'{"title":"a"}', {"title": "a"}),
    ],
)  # fmt: skip
def test_forms_of_other_programs(annotation: Any, data: bytes, value: Any) -> None:
    assert same(ItemCodec(annotation).decode(data), value)


@pytest.mark.parametrize(
    ("annotation", "data"),
    [
        (str, "1"), (str, "null"), (int, "1.0"), (int, "true"), (int, '"1"'), (float, '"1"'),
        (float, "true"), (bool, "1"), (None, "0"), (int, ""), (int, "1 2"), (int, "01"),
        (bytes, '"a"'), (bytes, "[1]"), (Decimal, "1"), (Decimal, '"NaN"'), (Decimal, '"x"'),
        (UUID, '"x"'), (UUID, "1"), (date, '"2024-02-30"'), (date, "0"), (timedelta, '"x"'),
        (timedelta, '"P9999999999D"'), (datetime, '"x"'), (datetime, "1709164800"),
        (datetime, '"2024-02-30T00:00:00"'), (datetime, '"2024-01-01T00:00:00[Mars/Base]"'),
        (datetime, '"2024-01-01T00:00:00[../../etc/passwd]"'),
        (datetime, '"2024-01-01T00:00:00[UTC][_fold=2]"'), (datetime, '"2024-01-01T00:00:00[]"'),
        (datetime, '"2024-01-01T00:00:00[/etc/passwd]"'), (datetime, '"[UTC]"'),
        (time, '"25:00"'), (time, '"10:00[zone.tab]"'), (ZoneInfo, '"leapseconds"'),
        (ZoneInfo, '"Nowhere"'), (ZoneInfo, '""'), (ZoneInfo, "1"), (ZoneInfo, '"Europe"'),
        (Color, '"blue"'), (Color, "1"), (Color, "[]"), (Level, "3"), (Corner, '"RIGHT"'),
        (Rights, "64"), (Literal["a"], '"b"'), (Literal[1], "true"), (Literal[True], "1"),
        (list[int], "{}"), (list[int], "[1,null]"), (tuple[int, int], "[1]"),
        (tuple[int, int], "[1,2,3]"), (tuple[int, ...], '"12"'), (set[int], "[1,1]"),
        (set[str], '["a","\\u0061"]'), (set[int], "{}"), (set[list[int]], "[[1]]"),
        (dict[list[int], int], '{"[1]":1}'), (frozenset[Unequal], "[1]"),
        (dict[int, int], '{"a":1}'),
        (dict[int, int], '{"1":1,"1":2}'), (dict[int, int], '{"1":1," 1":2}'),
        (dict[int, int], '{"1.0":1}'), (dict[int, int], "[]"), (dict[int, int], '{"":1}'),
        (dict[tuple[int, int], int], '{"[1,2,3]":1}'), (dict[bool, int], '{"1":1}'),
        (int | str, "1.5"), (int | None, "[]"), (str | Decimal, '"a"'),
        (str | Decimal, '{"bytes":"a"}'), (str | Decimal, '{"str":"a","Decimal":"1"}'),
        (str | Decimal, "{}"), (Point | Row, '{"x":1}'), (Point, "[]"), (Point, "{}"),
        (Point, '{"x":1,"z":2}'), (Point, '{"x":"1"}'), (Movie, '{"year":1}'),
        (Movie, '{"title":"a","x":1}'), (Pair, "[1]"), (Row, '{"blob":""}'),
        (Person, '{"cash":"0"}'), (Person, '{"fullName":"a"}'), (Person, "[]"), (Names, "[]"),
        (Names, '{"root":[1]}'), (Names, '{"root":[],"x":1}'),
        (Patch, '{"firstName":"a"}'),
    ],
    ids=lambda v: str(v)[:50],
)  # fmt: skip
def test_other_bytes_are_a_decode_error_that_keeps_them(annotation: Any, data: str) -> None:
    with pytest.raises(DecodeError, match=r"^the item") as caught:
        ItemCodec(annotation).decode(data.encode())
    assert caught.value.data == data.encode()
