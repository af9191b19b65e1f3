"""Items to bytes and back: typed, or of the plain types that most programs put into a queue."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import msgspec

from outlast.codec import ItemCodec
from outlast.codec.kinds import Misfit
from outlast.codec.limits import read
from outlast.errors import CodecError, ConfigurationError, DecodeError, EncodeError
from outlast.limits import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Codec", "PlainCodec", "check_codec", "codec_for"]


class Codec(Protocol):
    """Turns items into bytes and back. ``name`` is stored with each item and compared."""

    @property
    def name(self) -> str: ...

    def encode(self, item: Any, /) -> bytes:
        """The bytes to store. Raises ``EncodeError``."""
        ...

    def decode(self, data: bytes, /) -> Any:
        """The item. Whatever it raises buries the item, with its bytes."""
        ...


def check_codec(codec: Codec) -> None:
    """Refuse what is no codec, before the first item is put. Raises ``ConfigurationError``."""
    if isinstance(codec, type):
        raise ConfigurationError(
            f"codec {codec.__qualname__} is a class: give an object, as in {codec.__qualname__}()"
        )
    for method in ("encode", "decode"):
        if not callable(getattr(codec, method, None)):
            raise ConfigurationError(f"codec {codec!r} has no {method}()")
    check_name(getattr(codec, "name", None), "codec name")


def codec_for(type: Any) -> Codec:
    """The codec of items with that annotation, or of plain values if there is none.

    Raises ``ConfigurationError`` if such items can't be carried.
    """
    return PlainCodec() if type is None or type is Any else ItemCodec(type)


_LEAVES: dict[type, str] = {
    bytes: "bytes",
    date: "date",
    datetime: "datetime",
    time: "time",
    timedelta: "timedelta",
    Decimal: "decimal",
    UUID: "uuid",
}
_CODECS = {name: ItemCodec(kind) for kind, name in _LEAVES.items()}
_SERIES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAKERS: dict[str, Callable[[Any], Any]] = {name: kind for kind, name in _SERIES.items()}
_TAG = "$"
_TAGGED = b'"$"'
DEPTH = 64


class PlainCodec:
    """JSON, and tuples, sets, bytes, dates, times, decimals, UUIDs, and dicts with such keys.

    What JSON gives back unchanged is stored as that. The rest is an object ``{"$": kind, "v": …}``,
    and so is an object that has a key ``$`` itself. All come back as exactly what they were.
    """

    name = "json"

    def __init__(self) -> None:
        self._json = ItemCodec()
        self._plain = self._json.encode

    def encode(self, item: Any, /) -> bytes:
        """The bytes to store; ``EncodeError`` if the item would not come back as it is."""
        try:
            data = self._plain(item)
        except EncodeError:
            pass  # tried again with tags, which knows more
        else:
            if data.find(_TAGGED) < 0:  # `in` takes ten times as long for bytes
                return data
        try:
            return self._plain(_tagged(item, DEPTH))
        except EncodeError as error:
            how = " (a queue is told it as in Queue(type=Order))"
            raise EncodeError(f"{error}{how if 'annotate' in str(error) else ''}") from None

    def decode(self, data: bytes, /) -> Any:
        """The item; ``DecodeError``, which keeps the bytes, if they are not one."""
        try:
            value = read(data)  # all that the other does with what is sound, in half the steps
        except Misfit:
            value = self._json.decode(data)
        if data.find(_TAGGED) < 0:
            return value
        try:
            return _untagged(value)
        except (CodecError, KeyError, TypeError, ValueError) as error:
            raise DecodeError(f"the item has a tag that nobody knows: {error}", data) from error


def _tagged(value: Any, depth: int) -> Any:
    """The value in JSON's types alone; what it can't be in them is left, to be refused by name."""
    if depth < 0:
        raise EncodeError(f"the item nests deeper than the limit of {DEPTH} levels")
    kind = type(value)
    depth -= 1
    if kind is list:
        return [_tagged(each, depth) for each in value]
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _tagged(each, depth) for key, each in value.items()}
        pairs = [[_tagged(key, depth), _tagged(each, depth)] for key, each in value.items()]
        return {_TAG: "dict", "v": pairs}
    if kind in _SERIES:
        return {_TAG: _SERIES[kind], "v": [_tagged(each, depth) for each in value]}
    if kind in _LEAVES:
        name = _LEAVES[kind]
        return {_TAG: name, "v": msgspec.json.decode(_CODECS[name].encode(value))}
    return value


def _untagged(value: Any) -> Any:
    if type(value) is list:
        return [_untagged(each) for each in value]
    if type(value) is not dict:
        return value
    name = value.get(_TAG)
    if name is None:
        return {key: _untagged(each) for key, each in value.items()}
    inner = value["v"]
    if name == "dict":
        return {_untagged(key): _untagged(each) for key, each in inner}
    if name in _MAKERS:
        return _MAKERS[name](_untagged(each) for each in inner)
    return _CODECS[name].decode(msgspec.json.encode(inner))
