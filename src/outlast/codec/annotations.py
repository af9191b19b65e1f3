"""From an annotation to the kind that carries its values: done once, when a task is registered."""

from __future__ import annotations

import collections.abc
import enum
import inspect
import sys
import types
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from outlast.codec.containers import DictKind, ListKind, RecordKind, SetKind, TupleKind
from outlast.codec.fields import Unfit, fields_of, substitute
from outlast.codec.kinds import Kind, type_name
from outlast.codec.moments import MomentKind, ZoneKind
from outlast.codec.objects import Field, ObjectKind, PydanticKind, TypedDictKind
from outlast.codec.scalars import (
    BoolKind,
    ConvertedKind,
    DecimalKind,
    FloatKind,
    IntKind,
    NoneKind,
    PathKind,
    PlainKind,
    StrKind,
)
from outlast.codec.unions import ConstrainedKind, EnumKind, LiteralKind, UnionKind

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["kind_of"]

_SCALARS: dict[Any, type[Any]] = {
    str: StrKind,
    typing.LiteralString: StrKind,
    int: IntKind,
    float: FloatKind,
    bool: BoolKind,
    type(None): NoneKind,
    None: NoneKind,
    Decimal: DecimalKind,
    ZoneInfo: ZoneKind,
    Any: PlainKind,
    object: PlainKind,
    inspect.Parameter.empty: PlainKind,
    typing.NoReturn: NoneKind,
    typing.Never: NoneKind,
}
_STATELESS = frozenset(_SCALARS.values())
_CONVERTED = frozenset((UUID, bytes, bytearray, date, timedelta))
_MOMENTS = frozenset((datetime, time))
_PATHS = frozenset((PurePath, PurePosixPath, PureWindowsPath, Path))
# Abstract containers arrive as the plain one that type checkers take for them.
_LISTS = frozenset(
    (
        list,
        collections.abc.Sequence,
        collections.abc.MutableSequence,
        collections.abc.Collection,
        collections.abc.Iterable,
    )
)
_SETS = frozenset((set, collections.abc.Set, collections.abc.MutableSet))
_DICTS = frozenset((dict, collections.abc.Mapping, collections.abc.MutableMapping))
_WRAPPERS = frozenset(
    (
        typing.Required,
        typing.NotRequired,
        typing.Final,
        getattr(typing, "ReadOnly", typing.Final),  # of Python 3.13
    )
)


def kind_of(annotation: Any) -> Kind:
    """The kind for values of ``annotation``; raises ``Unfit``."""
    return _Builder().kind(annotation)


class _Later(Kind):
    """Stands for a class inside its own definition."""

    __slots__ = ("_accepts", "_shapes", "kind")
    sure = False

    def __init__(self, name: str, shapes: frozenset[str], accepts: frozenset[type]) -> None:
        super().__init__(name)
        self.kind: Kind | None = None
        self._shapes = shapes
        self._accepts = accepts

    @property
    def accepts(self) -> frozenset[type]:
        return self._accepts

    @property
    def shapes(self) -> frozenset[str]:
        return self._shapes

    def dump(self, value: Any, room: int) -> Any:
        assert self.kind is not None
        return self.kind.dump(value, room)

    def load(self, wire: Any) -> Any:
        assert self.kind is not None
        return self.kind.load(wire)


class _Builder:
    """Builds the kinds of one annotation, and knows which classes it is in the middle of."""

    def __init__(self) -> None:
        self._open: dict[Any, _Later] = {}

    def kind(self, annotation: Any) -> Kind:
        try:
            scalar = _SCALARS.get(annotation)
        except TypeError:  # an Annotated with unhashable notes
            scalar = None
        if scalar is not None:
            made: Kind = scalar()
            return made
        if isinstance(annotation, str | typing.ForwardRef):
            name = getattr(annotation, "__forward_arg__", annotation)
            raise Unfit(f"the name {name!r} can't be looked up from there")
        special = self._special(annotation)
        if special is not None:
            return special
        origin = typing.get_origin(annotation) or annotation
        if not isinstance(origin, type):
            raise Unfit(f"{type_name(annotation)} says nothing about what travels")
        return self._container(annotation, origin) or self._class(annotation, origin)

    def _special(self, annotation: Any) -> Kind | None:
        """What is no class: unions, literals, aliases, variables and notes around a type."""
        origin = typing.get_origin(annotation)
        if origin is typing.Union or origin is types.UnionType:
            return self._union(typing.get_args(annotation))
        if origin is typing.Literal:
            return self._literal(typing.get_args(annotation))
        if origin is typing.Annotated:
            return self._annotated(annotation)
        if origin in _WRAPPERS:
            return self.kind(typing.get_args(annotation)[0])
        if isinstance(annotation, typing.NewType):
            return self.kind(annotation.__supertype__)
        if isinstance(annotation, typing.TypeVar):
            if annotation.__constraints__:
                return self._union(annotation.__constraints__)
            return self.kind(annotation.__bound__ or Any)
        if isinstance(annotation, typing.ParamSpecArgs | typing.ParamSpecKwargs):
            return PlainKind()
        alias = origin if hasattr(origin, "__value__") else annotation
        if hasattr(alias, "__value__") and hasattr(alias, "__type_params__"):
            return self._alias(annotation, alias)
        return None

    def _alias(self, annotation: Any, alias: Any) -> Kind:
        """``type X = ...``, of Python 3.12."""
        value = alias.__value__
        args = typing.get_args(annotation)
        if args:
            value = substitute(value, dict(zip(alias.__type_params__, args, strict=False)))
        return self._once(annotation, frozenset(), frozenset(), lambda: self.kind(value))

    def _union(self, args: tuple[Any, ...]) -> Kind:
        members: dict[Any, Kind] = {}
        for arg in args:
            kind = self.kind(arg)
            if not kind.shapes:
                raise Unfit("a type alias that names itself in a union")
            if isinstance(kind, PlainKind):
                return kind
            for one in kind.members if isinstance(kind, UnionKind) else (kind,):
                # Two names of one scalar, as a NewType makes, are one member.
                members.setdefault(type(one) if type(one) in _STATELESS else one, one)
        # Any text is its own wire form, so a Literal beside str adds nothing.
        kinds = tuple(
            kind
            for kind in members.values()
            if not (isinstance(kind, LiteralKind) and type(kind.kind) in members)
        )
        if len(kinds) == 1:
            return kinds[0]
        try:
            return UnionKind(kinds)
        except ValueError as error:
            raise Unfit(str(error)) from None

    def _literal(self, allowed: tuple[Any, ...]) -> Kind:
        of = tuple(dict.fromkeys(type(value) for value in allowed))
        return LiteralKind(allowed, self._union(of))

    def _annotated(self, annotation: Any) -> Kind:
        inner, *notes = typing.get_args(annotation)
        if any(isinstance(note, msgspec.Meta) for note in notes):
            return self._constrained(annotation, inner, notes)
        return self.kind(inner)

    def _constrained(self, annotation: Any, inner: Any, notes: list[Any]) -> Kind:
        kind = self.kind(inner)
        # Items have kinds of their own; the constraint of a container is its length.
        bare = inner
        if isinstance(kind, ListKind | SetKind | TupleKind | DictKind):
            bare = next(iter(kind.accepts))
        metas = tuple(note for note in notes if isinstance(note, msgspec.Meta))
        try:
            return ConstrainedKind(kind, typing.Annotated[(bare, *metas)])
        except TypeError as error:
            raise Unfit(f"{type_name(annotation)}: {error}") from None

    def _container(self, annotation: Any, origin: type) -> Kind | None:
        args = typing.get_args(annotation)
        name = type_name(annotation)
        if origin in _LISTS:
            return ListKind(list, self._item(args), name)
        if origin in _SETS:
            return SetKind(set, self._item(args), name)
        if origin is frozenset:
            return SetKind(frozenset, self._item(args), name)
        if origin in _DICTS:
            # Keys that nothing describes are texts: no others survive JSON.
            key = StrKind() if not args or args[0] is Any else self.kind(args[0])
            return DictKind(key, self.kind(args[1] if args else Any), name)
        if origin is tuple:
            if not args and annotation in (tuple, typing.Tuple):  # noqa: UP006
                return TupleKind(tuple, PlainKind(), name)
            if len(args) == 2 and args[1] is Ellipsis:
                return TupleKind(tuple, self.kind(args[0]), name)
            return RecordKind(tuple(self.kind(arg) for arg in args), name)
        return None

    def _item(self, args: tuple[Any, ...]) -> Kind:
        return self.kind(args[0]) if args else PlainKind()

    def _class(self, annotation: Any, origin: type) -> Kind:
        if origin in _CONVERTED:
            return ConvertedKind(origin)
        if origin in _MOMENTS:
            return MomentKind(origin)
        if origin in _PATHS:
            return PathKind(origin)
        if issubclass(origin, enum.Enum):
            return EnumKind(origin)
        pydantic = sys.modules.get("pydantic")
        if pydantic is not None and issubclass(origin, pydantic.BaseModel):
            return PydanticKind(annotation)
        typed_dict = typing.is_typeddict(origin)
        build = TypedDictKind if typed_dict else ObjectKind
        accepts: frozenset[type] = frozenset((dict if typed_dict else origin,))

        def make() -> Kind:
            found = fields_of(annotation, origin)
            if found is None:
                raise Unfit(
                    f"{type_name(origin)} is no type that outlast carries; a dataclass, an attrs "
                    "class, a msgspec Struct, a NamedTuple, a TypedDict or a pydantic model is"
                )
            fields = tuple(
                Field(
                    field.name,
                    self.kind(field.type),
                    field.init,
                    field.required,
                    field.may_be_unset,
                )
                for field in found
            )
            return build(origin, fields, type_name(annotation))

        return self._once(annotation, frozenset(("object",)), accepts, make)

    def _once(
        self,
        annotation: Any,
        shapes: frozenset[str],
        accepts: frozenset[type],
        make: Callable[[], Kind],
    ) -> Kind:
        """Build a kind that may contain itself."""
        if annotation in self._open:
            return self._open[annotation]
        later = self._open[annotation] = _Later(type_name(annotation), shapes, accepts)
        try:
            made = make()
        finally:
            del self._open[annotation]
        if made is later:
            raise Unfit("a type alias that names itself and nothing else")
        later.kind = made
        return made
