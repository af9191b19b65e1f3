"""Which fields a class has, of what types, and how they are set: read from its definition."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from outlast.codec.kinds import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FoundField", "Unfit", "fields_of", "hints_of", "substitute"]


class Unfit(Exception):
    """An annotation whose values can't be carried, and why."""


class FoundField(NamedTuple):
    """A field as the class defines it. ``init`` is the argument that sets it, if any does."""

    name: str
    type: Any
    init: str | None
    required: bool
    may_be_unset: bool = False


def fields_of(annotation: Any, origin: type) -> list[FoundField] | None:
    """The fields of a class of a sort we know, else None. Raises ``Unfit``."""
    if issubclass(origin, msgspec.Struct):
        read = _struct_fields
    elif dataclasses.is_dataclass(origin):
        read = _dataclass_fields
    elif hasattr(origin, "__attrs_attrs__"):
        read = _attrs_fields
    elif issubclass(origin, tuple) and hasattr(origin, "_fields"):
        read = _named_tuple_fields
    elif typing.is_typeddict(origin):
        read = _typed_dict_fields
    else:
        return None
    return read(origin, hints_of(annotation, origin))


def hints_of(annotation: Any, origin: type) -> dict[str, Any]:
    """The annotations of a class with its type variables filled in. Raises ``Unfit``."""
    try:
        hints = typing.get_type_hints(origin, include_extras=True)
    except NameError as error:
        raise Unfit(
            f"{type_name(origin)} has an annotation with the name {error.name!r}, which doesn't "
            "exist there at run time: import it outside of `if TYPE_CHECKING`, at module level"
        ) from None
    except Exception as error:
        raise Unfit(f"the annotations of {type_name(origin)} can't be read: {error}") from error
    scopes = _scopes(origin, typing.get_args(annotation))
    seen: set[str] = set()
    for owner in origin.__mro__:
        scope = scopes.get(owner, {})
        for name in inspect.get_annotations(owner).keys() - seen:
            seen.add(name)
            hints[name] = substitute(hints[name], scope)
    return hints


def substitute(annotation: Any, scope: Mapping[Any, Any]) -> Any:
    """``annotation`` with the type variables of ``scope`` replaced."""
    if isinstance(annotation, typing.TypeVar):
        return scope.get(annotation, annotation)
    variables = getattr(annotation, "__parameters__", ())
    if not variables or isinstance(annotation, type):
        return annotation
    return annotation[tuple(scope.get(variable, variable) for variable in variables)]


def _scopes(origin: type, args: tuple[Any, ...]) -> dict[type, dict[Any, Any]]:
    """What the type variables of a generic class, and of each of its bases, stand for."""
    own = dict(zip(getattr(origin, "__parameters__", ()), args, strict=False))
    scopes = {origin: own}
    for base in getattr(origin, "__orig_bases__", ()):
        of = typing.get_origin(base)
        if isinstance(of, type) and of not in (typing.Generic, typing.Protocol):
            given = tuple(substitute(arg, own) for arg in typing.get_args(base))
            scopes.update(_scopes(of, given))
    return scopes


def _struct_fields(origin: Any, hints: dict[str, Any]) -> list[FoundField]:
    found = []
    for field in msgspec.structs.fields(origin):
        of = hints[field.name]
        set_types = tuple(arg for arg in typing.get_args(of) if arg is not msgspec.UnsetType)
        may_be_unset = msgspec.UnsetType in typing.get_args(of)
        if may_be_unset:
            of = typing.Union[set_types]  # noqa: UP007  no other way to make one of a tuple
        found.append(FoundField(field.name, of, field.name, field.required, may_be_unset))
    return found


def _dataclass_fields(origin: Any, hints: dict[str, Any]) -> list[FoundField]:
    return [
        FoundField(
            field.name,
            hints[field.name],
            field.name if field.init else None,
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(origin)
    ]


def _attrs_fields(origin: Any, hints: dict[str, Any]) -> list[FoundField]:
    nothing = sys.modules["attr"].NOTHING
    return [
        FoundField(
            field.name,
            hints.get(field.name, field.type or Any),
            field.alias if field.init else None,
            field.default is nothing,
        )
        for field in origin.__attrs_attrs__
    ]


def _named_tuple_fields(origin: Any, hints: dict[str, Any]) -> list[FoundField]:
    return [
        FoundField(name, hints.get(name, Any), name, name not in origin._field_defaults)
        for name in origin._fields
    ]


def _typed_dict_fields(origin: Any, hints: dict[str, Any]) -> list[FoundField]:
    # The class itself can't see the marks in annotations that are still text.
    marks = {typing.Required: True, typing.NotRequired: False}
    return [
        FoundField(
            name, hint, None, marks.get(typing.get_origin(hint), name in origin.__required_keys__)
        )
        for name, hint in hints.items()
    ]
