"""What may be put, and that it comes back as it was: plain, typed, or by a codec of one's own."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.errors import DecodeError, EncodeError
from outlast.job import Status
from outlast.queue.items import PlainCodec

if TYPE_CHECKING:
    from tests.dropin.steps import Queues

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8), st.just("$"),
    st.binary(max_size=8), st.dates(), st.datetimes(), st.timedeltas(), st.times(), st.uuids(),
    st.datetimes(timezones=st.integers(-700, 700).map(lambda m: timezone(timedelta(minutes=m)))),
    st.decimals(allow_nan=False, allow_infinity=False),
)  # fmt: skip
keys = st.one_of(st.text(alphabet="ab$v", max_size=2), st.integers(), st.tuples(st.integers()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3), st.frozensets(st.integers(), max_size=3),
        st.sets(st.text(alphabet="ab", max_size=2), max_size=3),
    ),
    max_leaves=12,
)  # fmt: skip


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down; -0.0 is not 0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(*pair) for pair in pairs)
    return bool(one == other) and repr(one) == repr(other)


@given(values)
def test_plain_values_come_back_exactly(value: Any) -> None:
    codec = PlainCodec()
    data = codec.encode(value)
    msgspec.json.decode(data)
    if isinstance(value, set | frozenset):
        assert type(codec.decode(data)) is type(value)
        assert codec.decode(data) == value
    else:
        assert same(codec.decode(data), value) or value == codec.decode(data)


@pytest.mark.parametrize("value", [1, "a", [1, {"a": None}], {"a": "$"}, 1.5, {}], ids=repr)
def test_what_json_can_do_is_plain_json(value: Any) -> None:
    assert msgspec.json.decode(PlainCodec().encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        (1, (2, 3)), {0: "a"}, date(2024, 2, 29),
        datetime(2024, 2, 29, tzinfo=ZoneInfo("Asia/Tokyo")),
        Decimal("0.10"), UUID(int=5), bytes(range(256)), {1, 2}, frozenset({"a"}), 2**70, "😀",
        {"$": 1}, {"$": "tuple", "v": [1]}, time(1, 2), timedelta(days=-1), [(), {}, b""],
    ],
    ids=repr,
)  # fmt: skip
async def test_items_come_back_as_they_were(ours: Queues, value: Any) -> None:
    queue = ours.queue()
    await queue.put(value)
    got = await queue.get()
    queue.task_done()
    assert got == value
    assert type(got) is type(value)


class Sub(int):
    pass


cyclic: list[Any] = []
cyclic.append(cyclic)


@pytest.mark.parametrize(
    "value",
    [
        object(), float("nan"), float("inf"), Sub(1), print, {1: object()}, (float("nan"),),
        cyclic,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
async def test_what_would_not_come_back_is_refused(ours: Queues, value: Any) -> None:
    queue = ours.queue()
    with pytest.raises(EncodeError):
        await queue.put(value)
    with pytest.raises(TypeError):
        queue.put_nowait(value)
    assert queue.empty()


def test_the_refusal_tells_what_to_do() -> None:
    with pytest.raises(EncodeError, match=r"type.*Queue\(type=Order\)"):
        PlainCodec().encode(object())


@pytest.mark.parametrize(
    "data",
    [b'{"$":"nobody","v":1}', b'{"$":"tuple"}', b'{"$":"date","v":"x"}', b'{"$":"dict","v":[1]}',
     b'{"$":"set","v":[[1]]}', b"{", b'{"$":[1],"v":2}'],
)  # fmt: skip
def test_bytes_that_are_no_item(data: bytes) -> None:
    with pytest.raises(DecodeError):
        PlainCodec().decode(data)


@dataclass
class Order:
    number: int
    lines: list[tuple[str, int]]
    at: datetime | None = None


class Parcel(msgspec.Struct):
    weight: Decimal
    content: bytes


@pytest.mark.parametrize(
    ("type_", "item"),
    [
        (Order, Order(7, [("tea", 2)], datetime(2026, 1, 1, tzinfo=UTC))),
        (Parcel, Parcel(Decimal("1.50"), b"\x00")),
        (tuple[int, str], (1, "a")),
        (dict[int, set[str]], {1: {"a"}}),
        (Order | Parcel | None, None),
    ],
    ids=["dataclass", "struct", "tuple", "dict", "union"],
)
async def test_typed_items(ours: Queues, type_: Any, item: Any) -> None:
    queue = ours.queue(type=type_)
    await queue.put(item)
    assert await queue.get() == item
    with pytest.raises(TypeError):
        await queue.put(object())


def test_a_type_that_cant_be_carried() -> None:
    with pytest.raises(outlast.ConfigurationError):
        outlast.Queue(name="x", url="memory://", type=complex)


class PickleCodec:
    """As docs/queue.md shows it: whoever may write to the file may run code here."""

    name = "pickle"

    def encode(self, item: Any) -> bytes:
        return pickle.dumps(item)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


async def test_a_codec_of_ones_own(ours: Queues) -> None:
    queue = ours.queue(codec=PickleCodec())
    item = Sub(5)
    await queue.put(item)
    got = await queue.get()
    assert type(got) is Sub
    queue.task_done()


class Picky:
    """Can't read what is below 5."""

    name = "picky"

    def encode(self, item: int) -> bytes:
        return str(item).encode()

    def decode(self, data: bytes) -> int:
        if int(data) < 5:
            raise ValueError("too small")
        return int(data)


@pytest.mark.parametrize("kind", ["queue", "priority", "lifo"])
async def test_what_nobody_can_read_hides_nothing(
    ours: Queues, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One by one, and after a shutdown, when an empty hand means the end."""
    queue = getattr(ours, kind)(codec=Picky())
    numbers = [0, 1, 2, 5, 3, 6, 4, 7]
    for number in reversed(numbers) if kind == "lifo" else numbers:
        await queue.put(number)
    assert queue.get_nowait() == 5
    queue.shutdown()
    assert await asyncio.wait_for(queue.get(), 60) == 6
    assert queue.get_nowait() == 7
    with pytest.raises(outlast.QueueShutDown):
        await asyncio.wait_for(queue.get(), 60)
    assert caplog.text.count("too small") == 5


class Wrong:
    name = "wrong"

    def encode(self, item: object) -> bytes:
        return "text"  # type: ignore[return-value]

    def decode(self, data: bytes) -> object:
        return data


async def test_a_codec_that_makes_no_bytes(ours: Queues) -> None:
    queue = ours.queue(codec=Wrong())
    with pytest.raises(EncodeError, match="codec 'wrong' made str of the item, not bytes"):
        await queue.put(1)
    assert queue.empty()


async def test_what_nobody_can_read_is_buried_and_the_rest_goes_on(
    ours: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    writing = ours.queue(name="x")
    await writing.put("not a number")
    await writing.put(5)
    other = ours.queue(name="x", codec=PickleCodec())
    await other.put("pickled")
    await writing.put(6)
    reading = ours.queue(name="x", type=int)
    assert isinstance(reading, outlast.Queue)
    assert await asyncio.wait_for(reading.get(), 60) == 5
    assert await asyncio.wait_for(reading.get(), 60) == 6
    reading.task_done(5)
    reading.task_done(6)
    await asyncio.wait_for(reading.join(), 60)
    depth = await reading.depth()
    assert (depth.dead, depth.live) == (2, 0)
    store: Any = reading._line.store
    dead = await store.find(status=[Status.DEAD], queue="x")
    assert {job.payload for job in dead} == {b'"not a number"', pickle.dumps("pickled")}
    assert all(job.failure.kind == "undecodable" for job in dead)
    assert "can't be read" in caplog.text
