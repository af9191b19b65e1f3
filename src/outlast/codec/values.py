"""One value to bytes and back: the items of queues and the results of tasks."""

from __future__ import annotations

from typing import Any, NoReturn

from outlast.codec.annotations import kind_of
from outlast.codec.containers import wire_bytes
from outlast.codec.fields import Unfit
from outlast.codec.kinds import Kind, Misfit
from outlast.codec.limits import MAX_BYTES, MAX_DEPTH, check_limits, read
from outlast.errors import ConfigurationError, DecodeError, EncodeError

__all__ = ["ItemCodec", "check_return", "explain", "refuse"]


class ItemCodec:
    """Turns values of one type into JSON bytes and back, for the items of a queue.

    ``type`` is an annotation; without one (``Any``) only values that JSON gives back unchanged are
    taken. ``max_bytes`` and ``max_depth`` bound the encoded item. Raises ``ConfigurationError`` if
    values of that type can't be carried.

    >>> codec = ItemCodec(tuple[int, str])
    >>> codec.decode(codec.encode((1, "a")))
    (1, 'a')
    """

    __slots__ = ("_exact", "_kind", "_label", "_max_bytes", "_max_depth")

    name = "json"

    def __init__(
        self,
        type: Any = Any,
        *,
        max_bytes: int = MAX_BYTES,
        max_depth: int = MAX_DEPTH,
        label: str = "the item",
    ) -> None:
        check_limits(max_bytes, max_depth)
        try:
            self._kind: Kind = kind_of(type)
        except Unfit as unfit:
            raise ConfigurationError(f"{label} can't be carried: {unfit}") from None
        self._exact = self._kind.exact
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._label = label

    def encode(self, item: Any) -> bytes:
        """The bytes to store; ``EncodeError`` if the item would not come back as it is."""
        try:
            wire = item if type(item) is self._exact else self._kind.dump(item, self._max_depth)
            data = wire_bytes(wire)
            if len(data) > self._max_bytes:
                raise Misfit(f"{len(data)} bytes, more than the limit of {self._max_bytes}")
            if not self._kind.sure:
                check_return(self._kind, data, self._max_depth)
            return data
        except (Misfit, UnicodeError, RecursionError) as error:
            refuse(self._label, error, self._max_depth)

    def decode(self, data: bytes) -> Any:
        """The item; ``DecodeError``, which keeps the bytes, if they are not one."""
        try:
            return self._kind.load(read(data, self._max_bytes, self._max_depth))
        except MemoryError:
            raise
        except Exception as error:
            raise DecodeError(explain(self._label, error, self._max_depth), data) from error


def check_return(kind: Kind, data: bytes, max_depth: int) -> None:
    """Try out whether encoded bytes give the same bytes again; ``Misfit`` if not.

    Only for kinds that run code of the user, which may do anything.
    """
    again = kind.dump(kind.load(read(data, len(data), max_depth)), max_depth)
    if wire_bytes(again) != data:
        raise Misfit(f"{kind.name} would come back changed")


def explain(label: str, error: Exception, max_depth: int) -> str:
    """What was wrong with what, for people; never the value itself."""
    if isinstance(error, Misfit):
        if error.message == "nests too deep":
            return f"{label}: nests deeper than the limit of {max_depth} levels"
        return f"{label}{error.path}: {error.message}"
    if isinstance(error, UnicodeError):
        return f"{label}: text with a lone surrogate (half of a character), which UTF-8 can't hold"
    if isinstance(error, RecursionError):
        return f"{label}: nests deeper than the interpreter's stack allows"
    return f"{label}: {type(error).__name__}: {error}"


def refuse(label: str, error: Exception, max_depth: int) -> NoReturn:
    """Raise the ``EncodeError`` for what went wrong."""
    raise EncodeError(explain(label, error, max_depth)) from (
        error.__cause__ if isinstance(error, Misfit) else None
    )
