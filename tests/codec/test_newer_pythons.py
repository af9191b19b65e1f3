"""Annotations that only newer Pythons can write, so their source is text here."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.codec.shapes import carries, takes

from outlast import ConfigurationError, EncodeError
from outlast.codec import Signature

since_312 = pytest.mark.skipif(sys.version_info < (3, 12), reason="written as of Python 3.12")
since_313 = pytest.mark.skipif(sys.version_info < (3, 13), reason="written as of Python 3.13")


def written(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    # Without the `annotations` of this module, which would make texts of these.
    exec(compile(source, "<written>", "exec", dont_inherit=True), names)
    return names


@since_312
class TestAliases:
    def test_an_alias_is_what_it_stands_for(self) -> None:
        names = written("from datetime import date\ntype Days = dict[date, int]")
        from datetime import date

        assert carries(names["Days"], {date(2024, 2, 29): 1})

    def test_an_alias_with_a_variable(self) -> None:
        names = written("type Pairs[T] = list[tuple[T, T]]")
        assert carries(names["Pairs"][int], [(1, 2)])
        with pytest.raises(EncodeError, match="expected int, got str"):
            takes(names["Pairs"][int]).encode(([("a", 2)],), {})

    def test_an_alias_that_holds_itself(self) -> None:
        names = written("type Tree = int | dict[str, Tree] | list[Tree]")
        assert carries(names["Tree"], {"a": [1, {"b": [2]}]})
        with pytest.raises(EncodeError, match="expected"):
            takes(names["Tree"]).encode(({"a": [1, {"b": ["2"]}]},), {})

    def test_an_alias_that_is_itself_and_nothing_more(self) -> None:
        for source in ("type Loop = Loop | None", "type Loop = Loop"):
            with pytest.raises(ConfigurationError, match="names itself"):
                takes(written(source)["Loop"])

    def test_a_generic_class_and_function(self) -> None:
        names = written(
            "from dataclasses import dataclass\n"
            "@dataclass\n"
            "class Cell[T]:\n"
            "    item: T\n"
            "def work[T: (int, str)](x: T) -> T: ...\n"
        )
        assert carries(names["Cell"][int], names["Cell"](1))
        assert Signature(names["work"]).decode(b'{"x":"a"}') == (("a",), {})


@since_313
def test_a_read_only_key() -> None:
    names = written(
        "from typing import ReadOnly, TypedDict, NotRequired\n"
        "class Row(TypedDict):\n"
        "    id: ReadOnly[int]\n"
        "    name: NotRequired[ReadOnly[str]]\n"
    )
    assert carries(names["Row"], {"id": 1})
