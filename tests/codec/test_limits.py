"""Size, depth and what no value may hold: found out at enqueue, and again before bytes are read."""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.codec.shapes import Node, takes

from outlast import DecodeError, EncodeError
from outlast.codec import ItemCodec, Signature
from outlast.codec.kinds import Misfit
from outlast.codec.limits import read


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def nested_dicts(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def chain(length: int) -> Node:
    node = Node(0)
    for value in range(length - 1):
        node = Node(value, [node])
    return node


class TestSize:
    def test_the_limit_is_named(self) -> None:
        signature = takes(str)
        exact = "a" * (2**20 - len('{"x":""}'))
        assert len(signature.encode((exact,), {})) == 2**20
        with pytest.raises(EncodeError, match=r"work\(\): .* 1048577 bytes, .* limit of 1048576"):
            signature.encode((exact + "a",), {})
        with pytest.raises(EncodeError, match=r"the result of work\(\): 1048578 bytes"):
            signature.encode_result("a" * 2**20)
        with pytest.raises(EncodeError, match="the item: 1048578 bytes, more than the limit of 10"):
            ItemCodec().encode("a" * 2**20)

    def test_it_can_be_set(self) -> None:
        signature = Signature(lambda x: None, name="work", max_bytes=10)
        assert signature.decode(signature.encode(("ab",), {})) == (("ab",), {})
        with pytest.raises(EncodeError, match="limit of 10"):
            signature.encode(("abc",), {})
        with pytest.raises(EncodeError, match="limit of 10"):
            signature.encode_result("a" * 9)

    def test_larger_bytes_are_not_even_read(self) -> None:
        for decode in (takes(str).decode, takes(str).decode_result, takes(str).digest):
            with pytest.raises(DecodeError, match="1048577 bytes, more than the limit of 1048576"):
                decode(b"[" * (2**20 + 1))

    def test_characters_count_as_bytes(self) -> None:
        with pytest.raises(EncodeError, match="the item: 8 bytes, more than the limit of 7"):
            ItemCodec(max_bytes=7).encode("\u20ac\u20ac")


class TestDepth:
    @pytest.mark.parametrize("make", [nested, nested_dicts])
    @pytest.mark.parametrize("annotation", [Any, list | dict])
    def test_the_limit_is_the_same_both_ways(self, make: Any, annotation: Any) -> None:
        # The object of arguments is the first level.
        signature, codec = takes(annotation), ItemCodec(annotation)
        assert signature.decode(signature.encode((make(63),), {})) == ((make(63),), {})
        assert codec.decode(codec.encode(make(64))) == make(64)
        with pytest.raises(EncodeError, match=r"argument 'x': .* limit of 64 levels"):
            signature.encode((make(64),), {})
        with pytest.raises(EncodeError, match=r"the item: .* limit of 64 levels"):
            codec.encode(make(65))
        with pytest.raises(DecodeError, match=r"the payload: .* limit of 64 levels"):
            signature.decode(msgspec.json.encode({"x": make(64)}))
        with pytest.raises(DecodeError, match=r"the item: .* limit of 64 levels"):
            codec.decode(msgspec.json.encode(make(65)))

    @pytest.mark.parametrize("depth", [65, 1_000, 10_000, 100_000])
    def test_no_depth_is_a_crash(self, depth: int) -> None:
        signature, deep, node = takes(Any), nested(depth), takes(Node)
        with pytest.raises(EncodeError, match="limit of 64 levels"):
            signature.encode((deep,), {})
        with pytest.raises(EncodeError, match="limit of 64 levels"):
            node.encode((chain(depth),), {})
        for opening, closing in (b"[]", b"{}"):
            data = bytes((opening,)) * depth + bytes((closing,)) * depth
            with pytest.raises(DecodeError):
                signature.decode(data)
            with pytest.raises(DecodeError):
                signature.decode(b'{"x":' * depth)
        del deep[0]

    def test_nor_where_the_stack_is_said_to_have_no_end(self) -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(1_000_000)
        try:
            self.test_no_depth_is_a_crash(100_000)
        finally:
            sys.setrecursionlimit(limit)

    def test_what_holds_itself(self) -> None:
        value: list[Any] = []
        value.append(value)
        with pytest.raises(EncodeError, match="limit of 64 levels"):
            takes(Any).encode((value,), {})

    def test_depth_hidden_in_the_text_of_a_key(self) -> None:
        kind: Any = int
        for _ in range(70):
            kind = tuple[kind, ...]
        value: Any = 1
        for _ in range(70):
            value = (value,)
        with pytest.raises(EncodeError, match="limit of 64 levels"):
            takes(dict[kind, int]).encode(({value: 1},), {})
        key = "[" * 70 + "1" + "]" * 70
        with pytest.raises(DecodeError, match="limit of 64 levels"):
            takes(dict[kind, int]).decode(msgspec.json.encode({"x": {key: 1}}))

    def test_it_can_be_set(self) -> None:
        signature = Signature(lambda x, *y, **z: None, name="work", max_depth=2)
        assert signature.decode(signature.encode(([1], 2), {"a": 3})) == (([1], 2), {"a": 3})
        for args, kwargs in ((([[1]],), {}), ((1, [2]), {}), ((1,), {"a": [3]})):
            with pytest.raises(EncodeError, match="limit of 2 levels"):
                signature.encode(args, kwargs)

    def test_brackets_in_texts_are_none(self) -> None:
        text = '[{"\\' * 100
        signature = takes(Any)
        assert signature.decode(signature.encode(([text, text],), {})) == (([text, text],), {})

    @settings(max_examples=200)
    @given(
        value=st.recursive(
            st.integers() | st.text('[]{}"\\:,a', max_size=6),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text('[]{}"\\:', max_size=3), inner, max_size=3)
            ),
            max_leaves=15,
        ),
        limit=st.integers(1, 6),
        indent=st.sampled_from((0, 2)),
    )
    def test_depth_is_counted_exactly(self, value: Any, limit: int, indent: int) -> None:
        def depth(of: Any) -> int:
            items = of.values() if isinstance(of, dict) else of if isinstance(of, list) else None
            return 0 if items is None else 1 + max(map(depth, items), default=0)

        data = msgspec.json.format(msgspec.json.encode(value), indent=indent)
        if depth(value) > limit:
            with pytest.raises(Misfit, match="nests deeper"):
                read(data, max_depth=limit)
        else:
            assert read(data, max_depth=limit) == value


class TestDoubleKeys:
    @pytest.mark.parametrize(
        "payload",
        [
            b'{"x":1,"x":1}', b'{"x":1,"x":2}', b'{"x":1, "x" :2}', b'{"x":1,"\\u0078":2}',
            b'{"x":{"a":1,"b":2,"a":3}}', b'{"x":[{"a":1},{"a":1,"a":1}]}', b'{"x":{"":1,"":2}}',
            b'{"x":{"\\"":1,"\\"":2}}', b'{"x":{"a":{"a":1},"a":{}}}',
            b'{"x":{"a":"\\\\","a":":"}}',
            b'{"x":{"\\ud83d\\udca9":1,"\xf0\x9f\x92\xa9":2}}',
        ],
    )  # fmt: skip
    def test_are_refused(self, payload: bytes) -> None:
        signature = takes(Any)
        for decode in (signature.decode, signature.decode_result, signature.digest):
            with pytest.raises(DecodeError, match="a key twice"):
                decode(payload)

    @pytest.mark.parametrize(
        ("payload", "value"),
        [
            (b'{"x":{"a":{"a":1},"b":{"a":1}}}', {"a": {"a": 1}, "b": {"a": 1}}),
            (b'{"x": [{"a":"a"}, {"a":"\\"a\\":1"}]}', [{"a": "a"}, {"a": '"a":1'}]),
            (b'{ "x" : {"a" : ":", ":":"a"}}', {"a": ":", ":": "a"}),
        ],
    )
    def test_the_same_key_elsewhere_is_none(self, payload: bytes, value: Any) -> None:
        assert takes(Any).decode(payload) == ((value,), {})


class TestNumbers:
    @pytest.mark.parametrize(
        "number",
        [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400", b"nan", b"1" * 4301,
         b"-" + b"1" * 4301, b"1" * 100_000, b"0x10", b"1_000", b"+1", b".5", b"01"],
        ids=lambda number: repr(number[:12]),
    )  # fmt: skip
    @pytest.mark.parametrize("annotation", [Any, int, float, int | float])
    def test_what_no_number_is(self, annotation: Any, number: bytes) -> None:
        with pytest.raises(DecodeError):
            takes(annotation).decode(b'{"x":' + number + b"}")


class TestTexts:
    @pytest.mark.parametrize(
        "text",
        [rb'"\ud800"', rb'"\udfff"', rb'"\ud800\ud800"', b'"\xed\xa0\x80"', b'"\xff"',
         b'"\xc0\x80"', rb'"\ud800\u0041"', rb'"\ud800 and a long text after it"',
         b'"\n"', b'"\0"', rb'"\x41"', b"'a'", b'"a'],
        ids=repr,
    )  # fmt: skip
    def test_what_no_text_is(self, text: bytes) -> None:
        for annotation in (Any, str):
            with pytest.raises(DecodeError):
                takes(annotation).decode(b'{"x":' + text + b"}")


HOSTILE = [
    b'"' * 2**19, b'\\"' * 2**19, b'{"x":"' + b"\\" * 2**19, b'{"x":"' + b'\\"' * 2**19,
    b"[" * 2**19, b"[]" * 2**19, b'{"":' * 2**17, b'{"x":[' + b"[]," * 2**18, b'["a":' * 2**17,
    b'{"x":[' + b"[[[[[[[[[[]]]]]]]]]]," * 2**15 + b"1]}", b'{"x": "' + b"[" * 2**19 + b'"}',
    b'{"x": [' + b'{"a" :1},' * 2**16 + b"1]}", b'{"x":"' + b"a[" * 2**18,
]  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:16]))
def test_no_bytes_take_long(data: bytes) -> None:
    """Half a megabyte to a megabyte of the worst kind: each byte is looked at a few times."""
    signature = takes(Any)
    start = time.process_time()
    try:
        signature.decode(data)
    except DecodeError as error:
        assert error.data is data  # noqa: PT017
    assert time.process_time() - start < 2


class TestAnyBytes:
    """Whatever the bytes: the arguments, or a DecodeError that keeps them; nothing else."""

    signatures = tuple(
        takes(annotation)
        for annotation in (Any, int, Node, dict[int, set[str]] | None, tuple[str, ...])
    )

    def check(self, data: bytes) -> None:
        for signature in self.signatures:
            for decode in (signature.decode, signature.decode_result, signature.digest):
                try:
                    decode(data)
                except DecodeError as error:
                    assert error.data == data  # noqa: PT017

    @settings(max_examples=200)
    @given(st.binary())
    def test_bytes(self, data: bytes) -> None:
        self.check(data)

    @settings(max_examples=200)
    @given(st.text('{}[]",:x*0123456789.eE+-\\untrefalsd ').map(str.encode))
    @example(b'{"x":1')
    def test_characters_of_json(self, data: bytes) -> None:
        self.check(data)

    @settings(max_examples=150)
    @given(
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(
                    st.sampled_from(("x", "*", "**", "value", "children", "1")), inner
                )
            ),
        ),
        data=st.data(),
    )
    def test_json_with_a_byte_changed(self, value: Any, data: st.DataObject) -> None:
        good = bytearray(msgspec.json.encode({"x": value}))
        self.check(bytes(good))
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
        self.check(bytes(good))
