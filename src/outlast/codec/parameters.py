"""What a function takes and returns, read from its signature when it is registered."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.codec.annotations import kind_of
from outlast.codec.containers import DictKind, ListKind
from outlast.codec.fields import Unfit
from outlast.codec.kinds import Kind, Misfit, StrKind, type_name
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KEYWORDS", "REST", "Parameters", "read_parameters"]

REST = "*"
KEYWORDS = "**"
_AWAITABLES = frozenset((collections.abc.Coroutine, collections.abc.Awaitable, types.CoroutineType))


class Parameters(NamedTuple):
    """The parameters of one function. Kinds are by payload name, in the order of the function."""

    kinds: dict[str, Kind]
    shown: dict[str, str]
    by_position: tuple[str, ...]
    by_keyword: frozenset[str]
    required: frozenset[str]
    result: Any


class _KeywordsKind(DictKind):
    """``**kwargs``, whose keys are names and not data, so that messages may quote them."""

    __slots__ = ()

    def dump(self, value: Any, room: int) -> Any:
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
    kinds: dict[str, Kind] = {}
    shown: dict[str, str] = {}
    by_position: list[str] = []
    by_keyword: set[str] = set()
    required: set[str] = set()
    for name, parameter in inspect.signature(fn).parameters.items():
        kind = _kind(label, name, hints.get(name, Any))
        if parameter.kind is parameter.VAR_POSITIONAL:
            kinds[REST] = ListKind(list, kind, f"*{name}")
            shown[REST] = f"*{name}"
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            kinds[KEYWORDS] = _KeywordsKind(StrKind(), kind, f"**{name}")
            shown[KEYWORDS] = f"**{name}"
            continue
        kinds[name] = kind
        if parameter.kind is not parameter.KEYWORD_ONLY:
            by_position.append(name)
        if parameter.kind is not parameter.POSITIONAL_ONLY:
            by_keyword.add(name)
        if parameter.default is parameter.empty:
            required.add(name)
    result = _awaited(hints.get("return", Any))
    return Parameters(
        kinds, shown, tuple(by_position), frozenset(by_keyword), frozenset(required), result
    )


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
    if not hasattr(fn, "__annotations__") and not isinstance(fn, type):
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
    found = [
        f"parameter {parameter!r} is annotated {annotation!r}, but "
        if parameter != "return"
        else f"the result is annotated {annotation!r}, but "
        for parameter, annotation in written.items()
        if isinstance(annotation, str) and name and name in annotation
    ]
    return found[0] if found else ""


def _awaited(annotation: Any) -> Any:
    """What comes of a function that returns an awaitable of it."""
    if typing.get_origin(annotation) in _AWAITABLES:
        return typing.get_args(annotation)[-1]
    return annotation
