"""Objects with fields: dataclasses, attrs, msgspec structs, named tuples, typed dicts, pydantic."""

from __future__ import annotations

from typing import Any, NamedTuple

from msgspec import UNSET

from outlast.codec.containers import wire_bytes
from outlast.codec.kinds import Kind, Misfit, alike, too_deep, type_name
from outlast.codec.scalars import PlainKind

__all__ = ["Field", "ObjectKind", "PydanticKind", "TypedDictKind"]


class Field(NamedTuple):
    """One field: its name, its kind, the argument that sets it (None: set afterwards)."""

    name: str
    kind: Kind
    init: str | None
    required: bool
    may_be_unset: bool
    """The value may be ``msgspec.UNSET``, which is to have no entry."""


class _Fields(Kind):
    """What travels as a JSON object with one entry a field."""

    __slots__ = ("fields", "of")

    def __init__(self, of: Any, fields: tuple[Field, ...], name: str) -> None:
        super().__init__(name)
        self.of = of
        self.fields = {field.name: field for field in fields}

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset(("object",))

    def _load_fields(self, wire: Any) -> dict[str, Any]:
        if type(wire) is not dict:
            raise self.misfit_wire(wire)
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, field in self.fields.items():
                if name in wire:
                    values[name] = field.kind.load(wire[name])
                elif field.required:
                    raise Misfit("missing")
        except Misfit as misfit:
            misfit.within(f".{name}")
            raise
        if len(values) != len(wire):
            raise Misfit(f"{self.name} with a field that it doesn't have")
        return values


class ObjectKind(_Fields):
    """A class whose objects are made by calling it with their fields.

    The class is called, so what it checks is checked again where the job runs. As its code may do
    anything, each value is tried out at enqueue.
    """

    __slots__ = ()
    sure = False

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self.of:
            raise self.misfit(value)
        if room < 1:
            raise too_deep()
        wires: dict[str, Any] = {}
        name = ""
        try:
            for name, field in self.fields.items():
                item = _get(value, name)
                if item is not UNSET or not field.may_be_unset:
                    wires[name] = field.kind.dump(item, room - 1)
        except Misfit as misfit:
            misfit.within(f".{name}")
            raise
        return wires

    def load(self, wire: Any) -> Any:
        values = self._load_fields(wire)
        given: dict[str, Any] = {}
        later: dict[str, Any] = {}
        for name, value in values.items():
            init = self.fields[name].init
            if init is None:
                later[name] = value
            else:
                given[init] = value
        try:
            made = self.of(**given)
        except MemoryError:
            raise
        except Exception as error:
            raise Misfit(f"{self.name} refused its fields: {_say(error)}") from error
        for name, value in later.items():
            object.__setattr__(made, name, value)
        return made


class TypedDictKind(_Fields):
    """A dict with known keys."""

    __slots__ = ("sure",)

    def __init__(self, of: Any, fields: tuple[Field, ...], name: str) -> None:
        super().__init__(of, fields, name)
        self.sure = all(field.kind.sure for field in fields)

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((dict,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not dict:
            raise self.misfit(value)
        if room < 1:
            raise too_deep()
        wires: dict[str, Any] = {}
        name: Any = ""
        try:
            for name, item in value.items():
                field = self.fields.get(name) if type(name) is str else None
                if field is None:
                    raise Misfit(f"{self.name} with a key that it doesn't have")
                wires[name] = field.kind.dump(item, room - 1)
            for name, field in self.fields.items():
                if field.required and name not in wires:
                    raise Misfit("missing")
        except Misfit as misfit:
            misfit.within(f"[{name!r}]" if name in self.fields else "")
            raise
        return wires

    def load(self, wire: Any) -> Any:
        values = self._load_fields(wire)
        return {name: values[name] for name in wire}


class PydanticKind(Kind):
    """A pydantic model, by its own JSON and its fields' names; refused where that loses something.

    Private attributes and which fields were set by hand are not carried.
    """

    __slots__ = ("of", "root")
    _plain = PlainKind()

    def __init__(self, of: Any) -> None:
        super().__init__(type_name(of))
        self.of = of
        self.root = "root" in of.model_fields

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset(("object",))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self.of:
            raise self.misfit(value)
        try:
            wire = value.model_dump(mode="json", by_alias=False, round_trip=True, warnings="none")
        except Exception as error:
            raise Misfit(f"{self.name} can't be written: {_say(error)}") from None
        if self.root:
            wire = {"root": wire}
        if type(wire) is not dict:
            raise Misfit(f"{self.name} writes itself as something else than its fields")
        self._plain.dump(wire, room)
        if not alike(self.load(wire), value):
            raise Misfit(f"{self.name} would come back changed from its own JSON")
        return wire

    def load(self, wire: Any) -> Any:
        if type(wire) is not dict or (self.root and wire.keys() != {"root"}):
            raise self.misfit_wire(wire)
        data = wire_bytes(wire["root"] if self.root else wire)
        try:
            return self.of.model_validate_json(data, by_alias=False, by_name=True)
        except MemoryError:
            raise
        except Exception as error:
            raise Misfit(f"{self.name} refused its JSON: {_say(error)}") from None


def _get(value: Any, name: str) -> Any:
    try:
        return getattr(value, name)
    except Exception as error:  # a property of the user's may raise anything
        raise Misfit("can't be read") from error


def _say(error: Exception) -> str:
    # pydantic quotes the input in its messages, and what is in a job is nobody's business.
    listed = getattr(error, "errors", None)
    if callable(listed) and hasattr(error, "error_count"):
        found = listed(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:3])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
