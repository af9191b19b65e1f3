"""What a function takes and returns, read from its signature when it is registered."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from outlast.codec.annotations import kind_of
from outlast.codec.containers import DictKind, ListKind
from outlast.codec.fields import Unfit
from outlast.codec.kinds import Kind, Misfit, too_deep, type_name
from outlast.codec.objects import TypedDictKind
from outlast.codec.scalars import StrKind
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KEYWORDS", "REST", "Parameters", "read_parameters"]

REST = "*"
KEYWORDS = "**"
_AWAITABLES = frozenset((collections.abc.Coroutine, collections.abc.Awaitable, types.CoroutineType))


@dataclass(slots=True)
class Parameters:
    """The parameters of one function. Kinds are by payload name, in the order of the function."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    by_position: list[str] = field(default_factory=list)
    by_keyword: set[str] = field(default_factory=set)
    required: set[str] = field(default_factory=set)
    result: Any = Any

    def add(self, parameter: inspect.Parameter, kind: Kind) -> None:
        """Take one parameter as the function defines it."""
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            self.kinds[REST] = ListKind(list, kind, f"*{name}")
            self.shown[REST] = f"*{name}"
            return
        if parameter.kind is parameter.VAR_KEYWORD:
            self.kinds[KEYWORDS] = _KeywordsKind(StrKind(), kind, f"**{name}")
            self.shown[KEYWORDS] = f"**{name}"
            return
        self.kinds[name] = kind
        if parameter.kind is not parameter.KEYWORD_ONLY:
            self.by_position.append(name)
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            self.by_keyword.add(name)
        if parameter.default is parameter.empty:
            self.required.add(name)

    def add_unpacked(self, kind: TypedDictKind) -> None:
        """Take ``**kwargs: Unpack[SomeTypedDict]``: its keys are parameters like any."""
        for entry in kind.fields.values():
            self.kinds[entry.name] = entry.kind
            self.by_keyword.add(entry.name)
            if entry.required:
                self.required.add(entry.name)


class _KeywordsKind(DictKind):
    """``**kwargs``, whose keys are names and not data, so that messages may quote them."""

    __slots__ = ()

    def dump(self, value: Any, room: int) -> Any:
        if room < 1:
            raise too_deep()
        wires: dict[str, Any] = {}
        name = ""
        try:
            for name, item in value.items():
                wires[name] = self.item.dump(item, room - 1)
        except Misfit as misfit:
            misfit.within(f"[{name!r}]")
            raise
        return wires


def read_parameters(fn: Callable[..., Any], label: str) -> Parameters:
    """The parameters of ``fn``; ``ConfigurationError`` if they can't be read or carried."""
    hints = _hints(fn, label)
    found = Parameters(result=_awaited(hints.get("return", Any)))
    for name, parameter in inspect.signature(fn).parameters.items():
        annotation = hints.get(name, Any)
        if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(annotation) is Unpack:
            kind = _kind(label, name, typing.get_args(annotation)[0])
            if isinstance(kind, TypedDictKind):
                found.add_unpacked(kind)
                continue
        found.add(parameter, _kind(label, name, annotation))
    return found


def _kind(label: str, name: str, annotation: Any) -> Kind:
    try:
        return kind_of(annotation)
    except Unfit as unfit:
        raise ConfigurationError(
            f"{label}: parameter {name!r} ({type_name(annotation)}) can't be carried: {unfit}"
        ) from None


def _hints(fn: Callable[..., Any], label: str) -> dict[str, Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn) and not isinstance(fn, type):
        fn = type(fn).__call__
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"{label}: {_who_names(fn, error.name)}the name {error.name!r} doesn't exist at run "
            "time; import it outside of `if TYPE_CHECKING`, at the level of the module"
        ) from None
    except Exception as error:
        raise ConfigurationError(f"{label}: the annotations can't be read: {error}") from error


def _who_names(fn: Callable[..., Any], name: str | None) -> str:
    """The parameters whose annotation can't be looked up because of a name."""
    try:
        written = fn.__annotations__
    except NameError:  # Python 3.14 looks them up only here
        return ""
    for parameter, annotation in written.items():
        text = annotation if isinstance(annotation, str) else type_name(annotation)
        if name and name in text:
            what = "the result" if parameter == "return" else f"parameter {parameter!r}"
            return f"{what} is annotated {text!r}, but "
    return ""


def _awaited(annotation: Any) -> Any:
    """What comes of a function that returns an awaitable of it."""
    if typing.get_origin(annotation) in _AWAITABLES:
        return typing.get_args(annotation)[-1]
    return annotation
