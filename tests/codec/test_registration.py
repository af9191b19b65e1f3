"""What can't be carried is said when a task is registered, and names the function and why."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pytest
from tests.codec.shapes import takes

from outlast import ConfigurationError
from outlast.codec import ItemCodec, Signature

if TYPE_CHECKING:
    from fractions import Fraction  # noqa: TC004  what goes wrong here is the point


@dataclasses.dataclass
class Lost:
    half: Fraction


@dataclasses.dataclass
class Holder:
    handle: typing.IO[str]


@dataclasses.dataclass
class Needy:
    name: str
    seed: dataclasses.InitVar[int]


class Speaks(Protocol):
    def speak(self) -> str: ...


class Twin:
    @dataclasses.dataclass
    class Point:
        x: int


class Other:
    @dataclasses.dataclass
    class Point:
        x: int


def parameter(x: Fraction) -> None: ...
def result() -> Fraction: ...  # type: ignore[empty-body]
def inside(x: Lost) -> None: ...


def refusal(fn: Callable[..., Any]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        Signature(fn, name="work")
    return str(caught.value)


def test_a_name_that_only_type_checkers_see() -> None:
    said = refusal(parameter)
    assert said.startswith("work(): parameter 'x' is annotated 'Fraction', but the name 'Fraction'")
    assert "outside of `if TYPE_CHECKING`" in said
    said = refusal(result)
    assert said.startswith("work(): the result is annotated 'Fraction', but the name 'Fraction'")


def test_such_a_name_within_another_type() -> None:
    def work(x: int, y: list[Fraction]) -> None: ...

    work.__annotations__["y"] = list["Fraction"]  # as it is without `from __future__`
    said = refusal(work)
    assert "parameter 'y' is annotated \"list['Fraction']\", but the name 'Fraction'" in said


def test_such_a_name_within_a_class() -> None:
    said = refusal(inside)
    assert said.startswith("work(): parameter 'x' (")
    assert "test_registration.Lost) can't be carried: " in said
    assert "has an annotation with the name 'Fraction'" in said


@pytest.mark.parametrize(
    "annotation",
    [
        complex, Callable[[], None], typing.IO[str], type, type[int], Holder, list[complex],
        dict[str, complex], tuple[int, complex], complex | None, Speaks, AsyncIterator[int],
        typing.Annotated[int, msgspec.Meta(max_length=3)], range, Exception,
        typing.Literal[1] | complex,
    ],
    ids=str,
)  # fmt: skip
def test_types_that_are_not_carried(annotation: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^work\(\): parameter 'x' "):
        takes(annotation)
    with pytest.raises(ConfigurationError, match=r"^the item can't be carried: "):
        ItemCodec(annotation)

    def work() -> None: ...

    work.__annotations__["return"] = annotation
    if annotation is not AsyncIterator[int]:
        with pytest.raises(ConfigurationError, match=r"^the result of work\(\) can't be carried"):
            Signature(work, name="work")


def twins() -> tuple[type, type]:
    def make() -> type:
        @dataclasses.dataclass
        class Point:
            x: int

        return Point

    return make(), make()


def test_two_members_of_a_union_with_one_name_in_one_place() -> None:
    one, other = twins()
    with pytest.raises(ConfigurationError, match="two members of a union that have the same name"):
        takes(typing.Union[one, other])  # noqa: UP007  made at run time


def test_an_annotation_that_is_no_python() -> None:
    def work(x: int) -> None: ...

    work.__annotations__["x"] = "int["
    assert refusal(work).startswith("work(): the annotations can't be read: ")

    @dataclasses.dataclass
    class Broken:
        x: int

    Broken.__annotations__["x"] = "int["
    work.__annotations__["x"] = Broken
    assert "Broken can't be read: " in refusal(work)


def test_two_members_of_a_union_with_one_name_are_told_apart_by_their_modules() -> None:
    union = takes(Twin.Point | Other.Point)
    for value in (Twin.Point(1), Other.Point(1)):
        (back,), _ = union.decode(union.encode((value,), {}))
        assert type(back) is type(value)


def test_a_class_that_wants_what_is_not_kept_is_refused_at_enqueue() -> None:
    with pytest.raises(TypeError, match="Needy refused its fields"):
        takes(Needy).encode((Needy("a", 1),), {})


@pytest.mark.parametrize("limit", [0, -1, 1.5, None, True])
def test_limits_that_make_no_sense(limit: Any) -> None:
    with pytest.raises(ConfigurationError, match="limit of bytes"):
        Signature(parameter, max_bytes=limit)
    with pytest.raises(ConfigurationError, match="limit of depth"):
        ItemCodec(max_depth=limit)


def test_a_depth_that_the_stack_has_no_room_for() -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 200"):
        ItemCodec(max_depth=201)


def test_libraries_of_models_are_never_imported_for_their_own_sake() -> None:
    code = (
        "import sys\n"
        "from outlast.codec import Signature\n"
        "def work(x: int, y: list[str]) -> None: ...\n"
        "Signature(work)\n"
        "print(sorted({'pydantic', 'attr', 'attrs'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
