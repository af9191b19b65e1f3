"""Annotations, values and classes that are seldom met, each with what becomes of it."""

from __future__ import annotations

import dataclasses
import enum
import functools
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    AnyStr,
    NamedTuple,
    Optional,
    ParamSpec,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
)

import msgspec
import pydantic
import pytest
import typing_extensions
from tests.codec.shapes import Color, Corner, Movie, Pair, Point, carries, takes

from outlast import ConfigurationError, DecodeError, EncodeError
from outlast.codec import ItemCodec, Signature
from outlast.codec.annotations import kind_of
from outlast.codec.parameters import _who_names

P = ParamSpec("P")
T = TypeVar("T")
Pairs: Any = typing_extensions.TypeAliasType("Pairs", list[tuple[T, T]], type_params=(T,))  # type: ignore[arg-type]
Loose = list["Nowhere"]  # type: ignore[name-defined]  # noqa: F821


class Needs(TypedDict):
    size: int


class Bag(pydantic.BaseModel):
    names: set[str]
    table: dict[str, tuple[int, ...]]


class Whisper(pydantic.BaseModel):
    name: str

    @pydantic.model_serializer
    def shorter(self) -> str:
        return self.name


class Mute(pydantic.BaseModel):
    name: str

    @pydantic.model_serializer
    def none(self) -> dict[str, Any]:
        raise ValueError("hunter2 is not told")


class Forgetful(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def no_room(cls, name: str) -> str:
        raise MemoryError


@dataclasses.dataclass
class LongWay:
    the_next_one_in_a_line_of_many: LongWay | int | None


@dataclasses.dataclass(frozen=True)
class Restless:
    """Raises what it is told to, where it is hashed or made."""

    hashed: str = ""
    made: str = ""

    def __post_init__(self) -> None:
        raise_one(self.made)

    def __hash__(self) -> int:
        raise_one(self.hashed)
        return 1


def raise_one(name: str) -> None:
    if name:
        raise {"value": ValueError, "memory": MemoryError, "stack": RecursionError}[name]("told to")


@dataclasses.dataclass
class Link:
    value: int
    after: Link | str | None = None


class Loop:
    """As ``type Loop = Loop`` and ``type Loop = Loop | None`` make it, as of Python 3.12."""

    __type_params__ = ()

    def __init__(self, optional: bool) -> None:
        self.optional = optional

    @property
    def __value__(self) -> Any:
        return Optional[self] if self.optional else self  # noqa: UP045

    def __call__(self) -> None:
        """typing takes only what can be called for a type."""


class TestAnnotations:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (Annotated[int, []], 1), (Annotated[int, "a note"], 1), (Optional[Any], [1]),  # noqa: UP045
            (Union[int, Any], {"a": 1}), (AnyStr, "a"), (AnyStr, b"a"),  # noqa: UP007
            (Corner | int, Corner.TOP), (Corner | int, 1), (Movie | None, {"title": "a"}),
            (Movie | None, None), (Annotated[int, msgspec.Meta(ge=0)] | str, 5),
            (Annotated[int, msgspec.Meta(ge=0)] | str, "5"), (Pair | Point | None, Pair(1)),
            (typing_extensions.TypeAliasType("Days", dict[int, Decimal]), {1: Decimal(2)}),
            (Pairs[int], [(1, 2)]), (Link, Link(1, Link(2, Link(3, "end")))), (Link, Link(1)),
            (Bag, Bag(names={"a", "b"}, table={"a": (1, 2)})),
        ],
        ids=lambda value: "bag" if isinstance(value, Bag) else str(value),
    )  # fmt: skip
    def test_seldom_ones(self, annotation: Any, value: Any) -> None:
        assert carries(annotation, value)

    def test_the_arguments_of_a_param_spec(self) -> None:
        def work(*args: Any, **kwargs: Any) -> None: ...

        params: Any = P
        work.__annotations__.update(args=params.args, kwargs=params.kwargs)
        signature = Signature(work)
        assert signature.decode(signature.encode((1,), {"a": "b"})) == ((1,), {"a": "b"})

    def test_unpacked_keys_may_be_a_must(self) -> None:
        def work(**more: Unpack[Needs]) -> None: ...

        work.__annotations__["more"] = Unpack[Needs]
        signature = Signature(work, name="work")
        assert signature.encode((), {"size": 1}) == b'{"size":1}'
        with pytest.raises(EncodeError, match=r"work\(\) misses the argument 'size'"):
            signature.encode((), {})

    def test_what_else_is_unpacked_is_not_carried(self) -> None:
        def work(**more: Any) -> None: ...

        work.__annotations__["more"] = Unpack[tuple[int]]
        with pytest.raises(ConfigurationError, match="'more'"):
            Signature(work)

    @pytest.mark.parametrize("annotation", [Loose, "Nowhere", 5, Ellipsis])
    def test_what_names_no_type(self, annotation: Any) -> None:
        with pytest.raises(ConfigurationError, match="the item can't be carried"):
            ItemCodec(annotation)

    @pytest.mark.parametrize("optional", [True, False])
    def test_an_alias_that_is_nothing_but_itself(self, optional: bool) -> None:
        with pytest.raises(ConfigurationError, match="a type alias that names itself"):
            takes(Loop(optional))

    def test_a_name_that_hides_in_another(self) -> None:
        def work(x: int) -> None: ...

        work.__annotations__["x"] = "Loose"
        with pytest.raises(ConfigurationError, match=r"work\(\): the name 'Nowhere' doesn't exist"):
            Signature(work, name="work")

    def test_annotations_that_can_only_be_looked_up_as_a_whole(self) -> None:
        class Lazy:
            @property
            def __annotations__(self) -> Any:  # type: ignore[override]  # as functions have them since Python 3.14
                raise NameError("Nowhere")

        assert _who_names(Lazy(), "Nowhere") == ""  # type: ignore[arg-type]

    def test_cached_functions(self) -> None:
        @functools.lru_cache
        def work(x: Decimal) -> None: ...

        assert Signature(work).encode((Decimal(1),), {}) == b'{"x":"1"}'


class TestDepthOfEveryContainer:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (list[int], [1]), (set[int], {1}), (tuple[int, ...], (1,)), (tuple[int, int], (1, 2)),
            (dict[int, int], {1: 1}), (dict[str, int], {}), (Movie, {"title": "a"}),
            (Point, Point(x=1)), (Pair, Pair(1)), (str | Decimal, "a"), (Any, [1]), (Any, {}),
            (Bag, Bag(names=set(), table={})),
        ],
        ids=str,
    )  # fmt: skip
    def test_one_level_is_one_level(self, annotation: Any, value: Any) -> None:
        needs = 2 if annotation is Bag else 1
        codec = ItemCodec(annotation, max_depth=needs)
        codec.decode(codec.encode(value))
        with pytest.raises(EncodeError, match=f"limit of {needs} levels"):
            ItemCodec(list[annotation], max_depth=needs).encode([value])

    def test_of_keyword_arguments(self) -> None:
        def work(**kwargs: int) -> None: ...

        assert Signature(work, max_depth=2).encode((), {"a": 1}) == b'{"**":{"a":1}}'
        with pytest.raises(EncodeError, match="limit of 1 levels"):
            Signature(work, max_depth=1).encode((), {"a": 1})


class TestUnions:
    def test_an_int_among_floats_where_only_floats_fit(self) -> None:
        codec = ItemCodec(list[float] | list[str])
        assert codec.encode([1]) == b'{"list[float]":[1.0]}'

    def test_the_reason_is_that_of_the_member_of_its_type(self) -> None:
        with pytest.raises(EncodeError, match=r"argument 'x'\[0\]: expected int, got str"):
            takes(list[int] | list[Decimal]).encode((["a"],), {})


class TestEnums:
    def test_members_whose_values_were_changed_are_refused(self) -> None:
        class Odd(enum.Enum):
            A = "a"
            B = "b"

        Odd.A._value_ = "b"
        with pytest.raises(EncodeError, match="can't be found by its value"):
            takes(Odd).encode((Odd.A,), {})

    def test_a_flag_that_is_no_sum_of_its_members(self) -> None:
        class Bits(enum.IntFlag):
            ONE = 1

        assert carries(Bits, Bits.ONE | Bits(8))
        with pytest.raises(DecodeError, match="no member of"):
            ItemCodec(Color).decode(b'"pink"')


class TestModelsOfTheirOwnMind:
    def test_one_that_writes_itself_as_a_text(self) -> None:
        with pytest.raises(EncodeError, match="something else than its fields"):
            takes(Whisper).encode((Whisper(name="a"),), {})

    def test_one_that_can_t_be_written(self) -> None:
        with pytest.raises(EncodeError, match="can't be written"):
            takes(Mute).encode((Mute(name="a"),), {})

    def test_text_that_utf_8_can_t_hold(self) -> None:
        with pytest.raises(EncodeError, match=r"^work\(\): argument 'x'"):
            takes(Bag).encode((Bag.model_construct(names={"\ud800"}, table={}),), {})


class TestWhatClassesRaise:
    def data(self, **fields: str) -> bytes:
        return msgspec.json.encode([{"hashed": "", "made": "", **fields}])

    @pytest.mark.parametrize("name", ["value", "stack"])
    def test_where_they_are_made(self, name: str) -> None:
        with pytest.raises(DecodeError, match=r"the item\[0\]: .* refused its fields: .* told to"):
            ItemCodec(list[Restless]).decode(self.data(made=name))

    @pytest.mark.parametrize(("name", "said"), [("value", "told to"), ("stack", "stack allows")])
    def test_where_they_are_hashed(self, name: str, said: str) -> None:
        with pytest.raises(DecodeError, match=f"the item: .*{said}"):
            ItemCodec(set[Restless]).decode(self.data(hashed=name))

    @pytest.mark.parametrize("field", ["made", "hashed"])
    def test_a_machine_without_memory_is_no_bad_payload(self, field: str) -> None:
        codec, signature = ItemCodec(set[Restless]), takes(set[Restless])
        with pytest.raises(MemoryError):
            codec.decode(self.data(**{field: "memory"}))
        with pytest.raises(MemoryError):
            signature.decode(b'{"x":' + self.data(**{field: "memory"}) + b"}")

        with pytest.raises(MemoryError):
            ItemCodec(Forgetful).decode(b'{"name":"a"}')

        def work(*, x: set[Restless]) -> None: ...

        work.__annotations__["x"] = set[Restless]
        with pytest.raises(MemoryError):
            Signature(work).decode(b'{"x":' + self.data(**{field: "memory"}) + b"}")


def test_what_has_no_annotation_may_be_any_json() -> None:
    plain = kind_of(Any)
    assert plain.accepts == {str, bool, type(None), int, float, list, dict}
    assert plain.shapes == {"null", "bool", "int", "float", "str", "array", "object"}


def test_an_object_that_is_not_passed_is_not_tried_out() -> None:
    def work(a: int, b: Any = None) -> None: ...

    work.__annotations__["b"] = Point
    assert Signature(work).encode((1,), {}) == b'{"a":1}'


def test_the_way_to_a_value_is_not_told_for_ever() -> None:
    value = LongWay(None)
    value.the_next_one_in_a_line_of_many = "x"  # type: ignore[assignment]
    for _ in range(50):
        value = LongWay(value)
    with pytest.raises(EncodeError, match="expected") as caught:
        takes(LongWay).encode((value,), {})
    assert len(str(caught.value)) < 700


class Half(NamedTuple):
    left: int


def test_wire_forms_of_the_wrong_shape() -> None:
    for annotation, data in (
        (tuple[int, int], b"{}"),
        (tuple[int, int], b'[1,"a"]'),
        (Half, b"[]"),
        (Path, b"1"),
        (Movie, b"[]"),
        (Movie, b"null"),
        (Point | Half, b'{"Point":[]}'),
    ):
        with pytest.raises(DecodeError, match="expected"):
            ItemCodec(annotation).decode(data)


def test_text_that_utf_8_can_t_hold_in_what_is_sorted() -> None:
    for value in ({("\ud800", 1), ("a", 2)}, {("b", 2), ("a\udfff", 1)}):
        with pytest.raises(EncodeError, match="argument 'x': text with a lone surrogate"):
            takes(set[tuple[str, int]]).encode((value,), {})

    def work(a: Any, b: set[tuple[str, int]]) -> None: ...

    with pytest.raises(EncodeError, match="argument 'b': text with a lone surrogate"):
        Signature(work).encode((1, {("\ud800", 1), ("a", 2)}), {})
