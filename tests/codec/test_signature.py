"""How arguments are bound, named, left out and told apart."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine  # noqa: TC003  read at run time
from datetime import date
from decimal import Decimal
from typing import Any, TypedDict, Unpack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.shapes import Point

from outlast import DecodeError, EncodeError
from outlast.codec import Signature


class Wishes(TypedDict, total=False):
    color: str
    size: int


def plain(order: int, to: str, copies: int = 1) -> Any:
    return locals()


def by_place(a: int, b: int = 0, /, c: int = 0) -> Any:
    return locals()


def by_name(*, a: int, b: int = 0) -> Any:
    return locals()


def rest(a: int, *more: int, b: int = 0, **others: str) -> Any:
    return locals()


def anything(*args, **kwargs):  # type: ignore[no-untyped-def]
    return locals()


def shadow(a: int, /, b: int = 0, **others: int) -> Any:
    return locals()


def wishes(a: int, **more: Unpack[Wishes]) -> Any:
    return locals()


def nothing() -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [
    plain, by_place, by_name, rest, anything, shadow, nothing, wishes,
]  # fmt: skip

names = st.sampled_from(("a", "b", "c", "order", "to", "copies", "more", "others", "x", "*", "**"))


@pytest.mark.parametrize("fn", FUNCTIONS)
@settings(max_examples=60)
@given(
    args=st.lists(st.integers(0, 9) | st.just("t"), max_size=4).map(tuple),
    kwargs=st.dictionaries(names, st.integers(0, 9) | st.just("t"), max_size=4),
)
def test_takes_the_calls_that_python_takes(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """And those come out as the same call."""
    signature = Signature(fn)
    try:
        received = fn(*args, **kwargs)
    except TypeError:
        with pytest.raises(EncodeError):
            signature.encode(args, kwargs)
        return
    try:
        payload = signature.encode(args, kwargs)
    except EncodeError as error:
        assert "expected" in str(error) or "takes no argument" in str(error)  # noqa: PT017
        return
    back_args, back_kwargs = signature.decode(payload)
    assert fn(*back_args, **back_kwargs) == received


class TestWhatIsSaid:
    @pytest.mark.parametrize(
        ("args", "kwargs", "said"),
        [
            ((), {}, "plain() misses the argument 'order', 'to'"),
            ((1,), {}, "plain() misses the argument 'to'"),
            ((1, "a", 2, 3), {}, "plain() takes 3 positional arguments, but 4 were given"),
            ((1, "a"), {"to": "b"}, "plain(): argument 'to' was given twice"),
            ((1, "a"), {"too": "b"}, "plain() takes no argument 'too' by keyword"),
            ((1, 2), {}, "plain(): argument 'to': expected str, got int"),
            ((), {"order": "1", "to": "a"}, "plain(): argument 'order': expected int, got str"),
        ],
    )
    def test_at_enqueue(self, args: tuple[Any, ...], kwargs: dict[str, Any], said: str) -> None:
        with pytest.raises(EncodeError) as caught:
            Signature(plain).encode(args, kwargs)
        assert str(caught.value) == said

    @pytest.mark.parametrize(
        ("payload", "said"),
        [
            (b"{}", "plain(): the payload: misses the argument 'order', 'to'"),
            (b'{"order":1}', "plain(): the payload: misses the argument 'to'"),
            (b'{"order":"1","to":"a"}', "plain(): argument 'order': expected int, found the JSON"),
            (b'{"order":1,"to":"a","x":1}', "plain(): argument 'x': the function has no such"),
            (b'{"order":1,"to":"a","*":[1]}', "plain(): argument '*': the function has no such"),
            (b"[1]", "plain(): the payload: not an object of arguments"),
            (b"null", "plain(): the payload: not an object of arguments"),
            (b'{"order":1', "plain(): the payload: not JSON that can be read"),
        ],
    )
    def test_at_work(self, payload: bytes, said: str) -> None:
        with pytest.raises(DecodeError) as caught:
            Signature(plain).decode(payload)
        assert str(caught.value).startswith(said)
        assert caught.value.data == payload

    @pytest.mark.parametrize(
        ("fn", "payload"),
        [
            (by_place, b'{"b":1}'), (by_place, b'{"c":1}'), (by_name, b"{}"),
            (by_name, b'{"b":1}'), (rest, b'{"*":[1]}'), (rest, b'{"a":1,"*":{}}'),
            (rest, b'{"a":1,"**":{"b":"x"}}'), (rest, b'{"a":1,"**":{"c":1}}'),
            (rest, b'{"a":1,"**":[]}'), (shadow, b'{"a":1,"**":{"b":1}}'),
            (wishes, b'{"a":1,"**":{}}'), (nothing, b'{"a":1}'), (nothing, b'{"":1}'),
        ],
    )  # fmt: skip
    def test_payloads_no_call_makes(self, fn: Callable[..., Any], payload: bytes) -> None:
        with pytest.raises(DecodeError):
            Signature(fn).decode(payload)

    def test_star_arguments_by_their_own_names(self) -> None:
        signature = Signature(rest)
        with pytest.raises(EncodeError, match=r"argument '\*more'\[1\]: expected int, got str"):
            signature.encode((1, 2, "3"), {})
        with pytest.raises(EncodeError, match=r"argument '\*\*others'\['x'\]: expected str"):
            signature.encode((1,), {"x": 5})

    def test_the_name_is_the_task_s(self) -> None:
        with pytest.raises(EncodeError, match=r"^shop\.plain\(\) misses"):
            Signature(plain, name="shop.plain").encode((), {})


class TestPayload:
    def test_arguments_by_name_as_passed(self) -> None:
        assert Signature(plain).encode((1,), {"to": "a"}) == b'{"order":1,"to":"a"}'
        assert Signature(nothing).encode((), {}) == b"{}"
        payload = Signature(rest).encode((1, 2, 3), {"b": 4, "c": "d"})
        assert payload == b'{"a":1,"*":[2,3],"b":4,"**":{"c":"d"}}'

    def test_defaults_are_the_running_function_s(self) -> None:
        payload = Signature(plain).encode((1, "a"), {})
        assert b"copies" not in payload

        def newer(order: int, to: str, copies: int = 7, color: str = "red") -> tuple[int, str]:
            return copies, color

        args, kwargs = Signature(newer).decode(payload)
        assert newer(*args, **kwargs) == (7, "red")

    def test_a_gap_in_the_middle_goes_by_name(self) -> None:
        def work(a: int = 1, b: int = 2, c: int = 3) -> None: ...

        assert Signature(work).decode(b'{"a":5,"c":6}') == ((5,), {"c": 6})

    def test_parameters_may_change_places_while_jobs_wait(self) -> None:
        def swapped(to: str, order: int) -> None: ...

        assert Signature(swapped).decode(Signature(plain).encode((1, "a"), {})) == (("a", 1), {})

    def test_methods_partials_and_callables(self) -> None:
        class Shop:
            def sell(self, day: date) -> None: ...
            def __call__(self, day: date) -> None: ...

        day = date(2024, 2, 29)
        for fn in (Shop().sell, Shop(), functools.partial(plain, to="a")):
            name = "order" if isinstance(fn, functools.partial) else "day"
            value = 1 if name == "order" else day
            signature = Signature(fn)
            args, kwargs = signature.decode(signature.encode((), {name: value}))
            assert inspect.signature(fn).bind(*args, **kwargs).arguments[name] == value

    def test_wrapped_functions_are_read_through(self) -> None:
        @functools.wraps(plain)
        def wrapper(*args: Any, **kwargs: Any) -> None: ...

        with pytest.raises(EncodeError, match="expected str"):
            Signature(wrapper).encode((1, 2), {})


class TestDigest:
    def digest(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> bytes:
        signature = Signature(fn)
        return signature.digest(signature.encode(args, kwargs))

    def test_sixteen_bytes(self) -> None:
        assert len(self.digest(nothing)) == 16

    def test_how_an_argument_is_passed_does_not_count(self) -> None:
        digests = {
            self.digest(plain, 1, "a"),
            self.digest(plain, 1, to="a"),
            self.digest(plain, to="a", order=1),
        }
        assert len(digests) == 1

    def test_the_order_of_dicts_and_sets_does_not_count(self) -> None:
        def work(x: dict[tuple[int, int], set[str]], y: Any) -> None: ...

        one = self.digest(
            work, {(1, 2): {"a", "b"}, (0, 1): set()}, {"a": {"b": 1, "c": 2}, "d": 0}
        )
        two = self.digest(
            work, {(0, 1): set(), (1, 2): {"b", "a"}}, {"d": 0, "a": {"c": 2, "b": 1}}
        )
        assert one == two

    @settings(max_examples=50)
    @given(items=st.lists(st.text(max_size=5) | st.integers() | st.none(), unique=True, max_size=8))
    def test_equal_sets_are_equal_bytes(self, items: list[Any]) -> None:
        def work(x: set[str | int | None]) -> None: ...

        encode = Signature(work).encode
        backwards = items[::-1]
        assert encode((set(items),), {}) == encode((set(backwards),), {})

    def test_the_order_of_lists_counts(self) -> None:
        assert self.digest(anything, [1, 2]) != self.digest(anything, [2, 1])

    @settings(max_examples=60)
    @given(one=st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), data=st.data())
    def test_other_arguments_another_digest(self, one: dict[str, int], data: st.DataObject) -> None:
        other = data.draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=3))
        assert (self.digest(anything, one) == self.digest(anything, other)) == (one == other)

    def test_what_is_passed_counts_and_what_is_not_does_not(self) -> None:
        assert self.digest(plain, 1, "a") != self.digest(plain, 1, "a", 1)

    def test_of_bytes_that_are_no_payload(self) -> None:
        with pytest.raises(DecodeError) as caught:
            Signature(plain).digest(b'{"a":1,"a":2}')
        assert caught.value.data == b'{"a":1,"a":2}'


class TestResults:
    def test_by_the_return_annotation(self) -> None:
        async def work() -> dict[date, Point]: ...  # type: ignore[empty-body]

        signature = Signature(work)
        result = {date(2024, 2, 29): Point(x=1)}
        assert signature.decode_result(signature.encode_result(result)) == result
        with pytest.raises(EncodeError, match=r"the result of .*work"):
            signature.encode_result({"a": 1})

    def test_none_is_null(self) -> None:
        for fn in (nothing, anything):
            assert Signature(fn).encode_result(None) == b"null"
            assert Signature(fn).decode_result(b"null") is None

    def test_none_is_all_that_a_function_annotated_so_may_return(self) -> None:
        with pytest.raises(EncodeError, match="expected None, got int"):
            Signature(nothing).encode_result(1)

    def test_a_function_that_returns_an_awaitable(self) -> None:
        def later() -> Coroutine[Any, Any, Decimal]: ...  # type: ignore[empty-body]
        def soon() -> Awaitable[Decimal]: ...  # type: ignore[empty-body]

        for fn in (later, soon):
            signature = Signature(fn)
            assert signature.decode_result(signature.encode_result(Decimal(1))) == Decimal(1)

    def test_results_that_are_none(self) -> None:
        with pytest.raises(DecodeError) as caught:
            Signature(nothing).decode_result(b"1")
        assert caught.value.data == b"1"
