"""Lists, tuples, sets and dicts, and the order that makes two equal sets the same bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.codec.kinds import Kind, Misfit, too_deep
from outlast.codec.limits import MAX_DEPTH, read

__all__ = ["DictKind", "ListKind", "RecordKind", "SetKind", "TupleKind", "wire_bytes"]

wire_bytes = msgspec.json.Encoder().encode


class _Array(Kind):
    """A container that travels as a JSON array of items of one kind."""

    __slots__ = ("item", "of", "sure")

    def __init__(self, of: type[Any], item: Kind, name: str) -> None:
        super().__init__(name)
        self.of = of
        self.item = item
        self.sure = item.sure

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset(("array",))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self.of:
            raise self.misfit(value)
        if room < 1:
            raise too_deep()
        if self.item.same(value):
            return list(value)
        wires: list[Any] = []
        dump = self.item.dump
        try:
            for item in value:
                wires.append(dump(item, room - 1))
        except Misfit as misfit:
            misfit.within(f"[{len(wires)}]")
            raise
        return wires

    def _load_items(self, wire: Any) -> list[Any]:
        if type(wire) is not list:
            raise self.misfit_wire(wire)
        if self.item.same(wire):
            return wire
        values: list[Any] = []
        load = self.item.load
        try:
            for item in wire:
                values.append(load(item))
        except Misfit as misfit:
            misfit.within(f"[{len(values)}]")
            raise
        return values


class ListKind(_Array):
    """``list[T]``."""

    __slots__ = ()

    def load(self, wire: Any) -> Any:
        return self._load_items(wire)


class TupleKind(_Array):
    """``tuple[T, ...]``."""

    __slots__ = ()

    def load(self, wire: Any) -> Any:
        return tuple(self._load_items(wire))


class SetKind(_Array):
    """``set[T]`` and ``frozenset[T]``, sorted so that equal sets are equal bytes."""

    __slots__ = ()

    def dump(self, value: Any, room: int) -> Any:
        wires = super().dump(value, room)
        shapes = set(map(type, wires))
        if len(shapes) == 1 and shapes <= {str, int, float}:
            wires.sort()
        else:
            wires.sort(key=wire_bytes)
        return wires

    def load(self, wire: Any) -> Any:
        items = self._load_items(wire)
        try:
            value = self.of(items)
        except TypeError as error:
            raise Misfit(f"{self.name} holds what can't be hashed") from error
        if len(value) != len(items):
            raise Misfit(f"{self.name} holds an item twice")
        return value


class RecordKind(Kind):
    """``tuple[A, B]``: a fixed number of items, each of its own kind."""

    __slots__ = ("items", "sure")

    def __init__(self, items: tuple[Kind, ...], name: str) -> None:
        super().__init__(name)
        self.items = items
        self.sure = all(item.sure for item in items)

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((tuple,))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset(("array",))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not tuple:
            raise self.misfit(value)
        if room < 1:
            raise too_deep()
        self._check_length(len(value))
        wires: list[Any] = []
        try:
            for kind, item in zip(self.items, value, strict=True):
                wires.append(kind.dump(item, room - 1))
        except Misfit as misfit:
            misfit.within(f"[{len(wires)}]")
            raise
        return wires

    def load(self, wire: Any) -> Any:
        if type(wire) is not list:
            raise self.misfit_wire(wire)
        self._check_length(len(wire))
        values: list[Any] = []
        try:
            for kind, item in zip(self.items, wire, strict=True):
                values.append(kind.load(item))
        except Misfit as misfit:
            misfit.within(f"[{len(values)}]")
            raise
        return tuple(values)

    def _check_length(self, found: int) -> None:
        if found != len(self.items):
            raise Misfit(f"expected {self.name} of {len(self.items)} items, got {found}")


class DictKind(Kind):
    """``dict[K, V]``. Keys that are no text travel as the JSON text of their wire form."""

    __slots__ = ("item", "key", "sure", "text_keys")

    def __init__(self, key: Kind, item: Kind, name: str) -> None:
        super().__init__(name)
        self.key = key
        self.item = item
        self.sure = key.sure and item.sure
        self.text_keys = key.shapes == {"str"}

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((dict,))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset(("object",))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not dict:
            raise self.misfit(value)
        if room < 1:
            raise too_deep()
        if self.text_keys and self.key.same(value) and self.item.same(value.values()):
            return dict(value)
        wires: dict[str, Any] = {}
        dump_key, dump = self._dump_key, self.item.dump
        at_key = True
        try:
            for key, item in value.items():
                at_key = True
                text = dump_key(key, room - 1)
                at_key = False
                wires[text] = dump(item, room - 1)
        except Misfit as misfit:
            misfit.within(" key" if at_key else "[...]")
            raise
        if len(wires) != len(value):
            raise Misfit("two keys that are the same in JSON")
        return wires

    def load(self, wire: Any) -> Any:
        if type(wire) is not dict:
            raise self.misfit_wire(wire)
        if self.text_keys and self.key.same(wire) and self.item.same(wire.values()):
            return wire
        load_key, load = self._load_key, self.item.load
        try:
            value = {load_key(key): load(item) for key, item in wire.items()}
        except Misfit as misfit:
            misfit.within("[...]")
            raise
        except TypeError as error:
            raise Misfit(f"{self.name} has a key that can't be hashed") from error
        if len(value) != len(wire):
            raise Misfit(f"{self.name} has a key twice")
        return value

    def _dump_key(self, key: Any, room: int) -> str:
        wire = self.key.dump(key, min(room, MAX_DEPTH))
        if self.text_keys:
            text: str = wire
            return text
        return wire_bytes(wire).decode()

    def _load_key(self, text: str) -> Any:
        if self.text_keys:
            return self.key.load(text)
        return self.key.load(read(text.encode()))
