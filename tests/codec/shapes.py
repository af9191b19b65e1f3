"""Classes of every sort that can be carried, and what "the same value" means."""

from __future__ import annotations

import dataclasses
import enum
from datetime import datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NotRequired, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic

from outlast.codec import ItemCodec, Signature

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    CRIMSON = "red"  # noqa: PIE796  an alias of RED


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()


class Corner(enum.Enum):
    """Values that are no JSON, so these travel by name."""

    TOP = (0, 1)
    LEFT = (1, 0)


@dataclasses.dataclass
class Order:
    number: int
    price: Decimal
    at: datetime
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Counted:
    """With a field that the caller can't set."""

    name: str
    length: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.name)


@dataclasses.dataclass(eq=False)
class Unequal:
    """Equal to nothing but itself."""

    name: str


@dataclasses.dataclass
class Shouting:
    """Changes what it is given, each time: it can't come back as it was."""

    name: str

    def __post_init__(self) -> None:
        self.name += "!"


@dataclasses.dataclass
class Positive:
    amount: int

    def __post_init__(self) -> None:
        if self.amount <= 0:
            raise ValueError("an amount is above zero")


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


@dataclasses.dataclass
class IntBox(Box[int], Generic[T]):
    other: list[T]


@dataclasses.dataclass
class ListBox(Box[int], Generic[T]):
    """Its T is another one than its base's, and its item another one too."""

    item: list[T]  # type: ignore[assignment]


@attrs.define
class Parcel:
    weight: float
    _secret: str = "s"
    when: time | None = None


def stripped(text: str) -> str:
    return text.strip()


@attrs.frozen
class Label:
    text: str = attrs.field(converter=stripped)


class Row(msgspec.Struct, frozen=True):
    id: int
    blob: bytes = b""


class Patch(msgspec.Struct, rename="camel", omit_defaults=True):
    first_name: str | msgspec.UnsetType = msgspec.UNSET
    visits: int | msgspec.UnsetType | None = msgspec.UNSET


class Pair(NamedTuple):
    left: int
    right: Decimal = Decimal(0)


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    born: datetime | None = None
    cash: Decimal = Decimal(0)

    model_config = pydantic.ConfigDict(populate_by_name=True)


class Team(pydantic.BaseModel):
    people: list[Person]
    lead: Person | None = None


class Names(pydantic.RootModel[list[str]]):
    pass


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type, all the way down: fields, zones, folds, signs of zero."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return bool(one.hex() == other.hex())
    if isinstance(one, Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, datetime | time):
        return one == other and one.fold == other.fold and same(one.tzinfo, other.tzinfo)
    if isinstance(one, ZoneInfo):
        return bool(one.key == other.key)
    if isinstance(one, dict):
        return list(map(same_key, one)) == list(map(same_key, other)) and all(
            map(same, one.values(), other.values())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    names = fields(one)
    if names is not None:
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)


def same_key(key: Any) -> tuple[type, str]:
    return type(key), repr(key)


def fields(value: Any) -> list[str] | None:
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value))]
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if isinstance(value, pydantic.BaseModel):
        return list(type(value).model_fields)
    return None


def takes(annotation: Any) -> Signature:
    """The signature of ``work(x: annotation)``."""

    def work(x: Any) -> None: ...

    work.__annotations__ = {"x": annotation, "return": annotation}
    return Signature(work, name="work")


def carries(annotation: Any, value: Any) -> bool:
    """Whether a value comes back the same: as an argument, by name, as a result, as an item."""
    signature, codec = takes(annotation), ItemCodec(annotation)
    payload = signature.encode((value,), {})
    assert payload == signature.encode((), {"x": value})
    (argument,), nothing = signature.decode(payload)
    assert nothing == {}
    back: list[Callable[[], Any]] = [
        lambda: argument,
        lambda: signature.decode_result(signature.encode_result(value)),
        lambda: codec.decode(codec.encode(value)),
    ]
    return all(same(one(), value) for one in back)
