"""One of several: unions, literals and enums."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.codec.kinds import Kind, Misfit, alike, too_deep, type_name

if TYPE_CHECKING:
    from enum import Enum

__all__ = ["ConstrainedKind", "EnumKind", "LiteralKind", "UnionKind"]

# A class may move to another module while jobs wait.
_MODULES = re.compile(r"(?:[\w<>]+\.)+")
_SHAPES: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "array",
    dict: "object",
}


class EnumKind(Kind):
    """Enum members by value where all values are texts or ints, else by name."""

    __slots__ = ("by_value", "of")

    def __init__(self, of: type[Enum]) -> None:
        super().__init__(type_name(of))
        self.of = of
        self.by_value = all(type(member.value) in (str, int) for member in of)

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    @property
    def shapes(self) -> frozenset[str]:
        if not self.by_value:
            return frozenset(("str",))
        return frozenset(_SHAPES[type(member.value)] for member in self.of) or frozenset(("int",))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self.of:
            raise self.misfit(value)
        wire = value.value if self.by_value else value.name
        if self.load(wire) is not value:
            raise Misfit(f"a {self.name} that can't be found by its value")
        return wire

    def load(self, wire: Any) -> Any:
        # The enum's own _missing_ may raise anything.
        try:
            if self.by_value and type(wire) in (str, int):
                return self.of(wire)
            if type(wire) is str:
                return self.of[wire]
        except Exception as error:
            raise Misfit(f"no member of {self.name}") from error
        raise self.misfit_wire(wire)


class LiteralKind(Kind):
    """``Literal[...]``: a kind for the values' types, and the list of those allowed."""

    __slots__ = ("allowed", "kind")

    def __init__(self, allowed: tuple[Any, ...], kind: Kind) -> None:
        super().__init__(f"Literal[{', '.join(map(repr, allowed))}]")
        self.allowed = frozenset((type(value), value) for value in allowed)
        self.kind = kind

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset(of for of, _ in self.allowed)

    @property
    def shapes(self) -> frozenset[str]:
        return self.kind.shapes

    def dump(self, value: Any, room: int) -> Any:
        wire = self.kind.dump(value, room)
        self._check(value)
        return wire

    def load(self, wire: Any) -> Any:
        value = self.kind.load(wire)
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        if (type(value), value) not in self.allowed:
            raise Misfit(f"expected one of {self.name}")


class ConstrainedKind(Kind):
    """``Annotated[T, msgspec.Meta(...)]``: the values of a kind that keep msgspec's constraints."""

    __slots__ = ("checked", "kind", "sure")

    def __init__(self, kind: Kind, checked: Any) -> None:
        super().__init__(kind.name)
        self.kind = kind
        self.sure = kind.sure
        self.checked = checked
        msgspec.json.Decoder(checked)  # raises TypeError for a constraint on the wrong type

    @property
    def accepts(self) -> frozenset[type]:
        return self.kind.accepts

    @property
    def shapes(self) -> frozenset[str]:
        return self.kind.shapes

    def dump(self, value: Any, room: int) -> Any:
        wire = self.kind.dump(value, room)
        self._check(value)
        return wire

    def load(self, wire: Any) -> Any:
        value = self.kind.load(wire)
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        try:
            msgspec.convert(value, self.checked)
        except msgspec.ValidationError as error:
            raise Misfit(str(error)) from None


class UnionKind(Kind):
    """``A | B``. A member whose JSON could be another's travels as ``{"its name": ...}``."""

    __slots__ = ("by_shape", "by_tag", "by_type", "members", "sure", "tags")

    def __init__(self, members: tuple[Kind, ...]) -> None:
        super().__init__(" | ".join(member.name for member in members))
        self.members = members
        self.sure = all(member.sure for member in members)
        self.tags = _tags(members)
        self.by_tag = {tag: member for member, tag in self.tags.items()}
        self.by_type = _only_ones(members)
        self.by_shape: dict[str, Kind] = {}
        for member in members:
            if member not in self.tags:
                self.by_shape.update(dict.fromkeys(member.shapes, member))
        # JSON from elsewhere may write a float without its point.
        if "int" not in self.by_shape and "float" in self.by_shape:
            self.by_shape["int"] = self.by_shape["float"]

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset().union(*(member.accepts for member in self.members))

    @property
    def shapes(self) -> frozenset[str]:
        shapes = frozenset(self.by_shape)
        return shapes | {"object"} if self.tags else shapes

    def dump(self, value: Any, room: int) -> Any:
        member = self.by_type.get(type(value))
        if member is not None:
            return self._dump_as(member, value, room)
        return self._dump_best(value, room)

    def load(self, wire: Any) -> Any:
        if self.tags and type(wire) is dict:
            if len(wire) == 1:
                [(tag, inner)] = wire.items()
                member = self.by_tag.get(tag)
                if member is not None:
                    return member.load(inner)
            raise Misfit(f"expected {self.name}, found an object that names none of them")
        member = self.by_shape.get(_SHAPES[type(wire)])
        if member is None:
            raise self.misfit_wire(wire)
        return member.load(wire)

    def _dump_best(self, value: Any, room: int) -> Any:
        """As the first member that gives it back unchanged, else as the first that takes it."""
        second: list[Any] = []
        reason: Misfit | None = None
        for member in self.members:
            try:
                wire = self._dump_as(member, value, room)
                if alike(self.load(wire), value):
                    return wire
                second.append(wire)
            except Misfit as misfit:
                if reason is None and type(value) in member.accepts:
                    reason = misfit
        if second:
            return second[0]
        raise reason or self.misfit(value)

    def _dump_as(self, member: Kind, value: Any, room: int) -> Any:
        tag = self.tags.get(member)
        if tag is None:
            return member.dump(value, room)
        if room < 1:
            raise too_deep()
        return {tag: member.dump(value, room - 1)}


def _tags(members: tuple[Kind, ...]) -> dict[Kind, str]:
    tagged = {
        member
        for member in members
        if any(member.shapes & other.shapes for other in members if other is not member)
    }
    if tagged:
        # A tag is an object, so a plain object next to it needs one too.
        tagged |= {member for member in members if "object" in member.shapes}
    short = {member: _MODULES.sub("", member.name) for member in members if member in tagged}
    if len(set(short.values())) < len(short):
        short = {member: member.name for member in short}
    if len(set(short.values())) < len(short):
        raise ValueError("two members of a union that have the same name")
    return short


def _only_ones(members: tuple[Kind, ...]) -> dict[type, Kind]:
    """The types that lead to one member at once."""
    found: dict[type, list[Kind]] = {}
    for member in members:
        for of in member.accepts:
            found.setdefault(of, []).append(member)
    return {of: kinds[0] for of, kinds in found.items() if len(kinds) == 1}
