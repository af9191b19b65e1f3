"""Turns a value into bytes that sort as the value does: a store can't call ``__lt__``.

A rank is a tag for the kind of value, then a body that nothing follows ambiguously:

    10..14   numbers: -inf, below zero, zero, above zero, inf
    20       text; UTF-8 sorts as code points do
    30       bytes
    40 50 60 date; datetime without a zone; datetime with one, as a moment
    70 80    time of day; timedelta
    90 a0 b0 tuple; list; ordered dataclass or struct: their elements, then 00

Numbers of all types are one kind and compare by their exact value, as in Python: 1, 1.0 and
Decimal(1) are equal, and 2**53 + 1 is above 2.0**53. A number above zero is the decimal exponent
and the digits of its exact value, with 00 at the end; one below zero has every byte inverted. Text
and bytes end with 00, and a 00 inside them is 00 ff. No tag is 00 or ff.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.codec.limits import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["kind", "rank"]

_MINUS_INFINITY, _BELOW, _ZERO, _ABOVE, _INFINITY = (bytes([0x10 + i]) for i in range(5))
_TEXT, _BYTES, _DATE, _NAIVE, _AWARE, _TIME, _DELTA, _TUPLE, _LIST, _RECORD = (
    bytes([tag]) for tag in range(0x20, 0xC0, 0x10)
)
_END = b"\x00"
_REST = b"\x01"
"""Stands for an element without an order, and for all that follow it: insertion order decides."""

_INVERTED = bytes(255 - byte for byte in range(256))
_NEAR = 100
_ZERO_DAY = datetime(1, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_KINDS = {
    0x1: "a number", 0x2: "text", 0x3: "bytes", 0x4: "a date", 0x5: "a datetime without a zone",
    0x6: "a datetime with a zone", 0x7: "a time", 0x8: "a timedelta", 0x9: "a tuple",
    0xA: "a list", 0xB: "a dataclass",
}  # fmt: skip


def rank(value: object) -> bytes:
    """The bytes that sort as ``value`` does among values of its kind.

    Numbers (int, float, Decimal), str, bytes, date, datetime, time and timedelta have a rank, and
    tuples, lists, ordered dataclasses and ordered msgspec structs of these. A later element of a
    tuple that has no order ends the comparison there: Python compares it only after a tie.

    Datetimes with a zone compare as moments. (Python compares two of the very same zone by their
    wall clock instead, which differs only across a change of summer time.)

    Raises ``TypeError`` for everything else, NaN included, and for what makes a rank that is longer
    than an item may be.
    """
    try:
        ranked = (_ENCODERS.get(value.__class__) or _encoder(value))(value)
    except _Unordered as error:
        raise TypeError(str(error)) from None
    except RecursionError:
        raise TypeError(f"{_name(value)} nests too deep to be ordered") from None
    if len(ranked) > MAX_BYTES:
        raise TypeError(
            f"{_name(value)} has an order of {len(ranked)} bytes, more than the limit of "
            f"{MAX_BYTES}: give the queue a key="
        )
    return ranked


def kind(ranked: bytes) -> str:
    """The kind of value behind a rank, in words: values of two kinds can't be compared."""
    return _KINDS[ranked[0] >> 4]


class _Unordered(TypeError):
    """A value that has no rank."""


def _name(value: object) -> str:
    return type(value).__qualname__


def _unordered(value: object) -> _Unordered:
    return _Unordered(
        f"{_name(value)} has no order that can be stored: put numbers, text, bytes, dates, tuples "
        f"of these or dataclasses with order=True, or give the queue a key="
    )


def _int(value: int) -> bytes:
    if value > 0:
        return _ABOVE + _magnitude(value)
    if value == 0:
        return _ZERO
    return _BELOW + _magnitude(-value).translate(_INVERTED)


def _magnitude(value: int) -> bytes:
    try:
        digits = int.__repr__(value)
    except ValueError as error:
        raise _Unordered(str(error)) from None
    return _body(len(digits), digits)


def _float(value: float) -> bytes:
    if not isfinite(value):
        if value != value:
            raise _Unordered("NaN has no place in any order")
        return _INFINITY if value > 0 else _MINUS_INFINITY
    whole = int(value)
    return _int(whole) if whole == value else _decimal(Decimal(value))


def _decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        return _float(float("nan") if value.is_nan() else float(value))
    if not value:
        return _ZERO
    # The text is at hand much faster than the tuple of digits. It is exact.
    digits = str(value.copy_abs()).partition("E")[0].replace(".", "").lstrip("0")
    body = _body(value.adjusted() + 1, digits)
    return _BELOW + body.translate(_INVERTED) if value < 0 else _ABOVE + body


def _body(exponent: int, digits: str) -> bytes:
    """Of the number 0.DIGITS times ten to the power of ``exponent``, the first digit not 0."""
    if -_NEAR <= exponent <= _NEAR:
        head = bytes([128 + exponent])
    elif exponent > 0:
        head = b"\xf0" + exponent.to_bytes(8, "big")
    else:
        head = b"\x10" + (exponent + (1 << 63)).to_bytes(8, "big")
    return head + digits.rstrip("0").encode() + _END


def _str(value: str) -> bytes:
    # Lone surrogates keep their place, though no codec of ours stores them.
    return _TEXT + str.encode(value, "utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + _END


def _bytes(value: bytes) -> bytes:
    return _BYTES + bytes(value).replace(b"\0", b"\0\xff") + _END


def _date(value: date) -> bytes:
    return _DATE + value.toordinal().to_bytes(4, "big")


def _datetime(value: datetime) -> bytes:
    offset = value.utcoffset()
    since = value.replace(tzinfo=None) - _ZERO_DAY
    if offset is None:
        return _NAIVE + _micros(since)
    return _AWARE + _micros(since - offset)


def _micros(span: timedelta) -> bytes:
    return (span // _MICROSECOND + (1 << 62)).to_bytes(8, "big")


def _time(value: time) -> bytes:
    if value.utcoffset() is not None:
        raise _Unordered("a time of day with a zone has no order that can be stored")
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    return _TIME + (seconds * 1_000_000 + value.microsecond).to_bytes(8, "big")


def _timedelta(value: timedelta) -> bytes:
    return _DELTA + _int(value // _MICROSECOND)


def _tuple(value: tuple[Any, ...]) -> bytes:
    return _TUPLE + _elements(value)


def _list(value: list[Any]) -> bytes:
    return _LIST + _elements(value)


def _elements(values: Iterable[object]) -> bytes:
    parts: list[bytes] = []
    for value in values:
        try:
            parts.append((_ENCODERS.get(value.__class__) or _encoder(value))(value))
        except _Unordered:
            if not parts:
                raise
            parts.append(_REST)
            break
    parts.append(_END)
    return b"".join(parts)


def _record(value: Any) -> bytes:
    names = [field.name for field in fields(value) if field.compare]
    return _RECORD + _elements(getattr(value, name) for name in names)


def _struct(value: Any) -> bytes:
    names = type(value).__struct_fields__
    return _RECORD + _elements(getattr(value, name) for name in names)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    int: _int,
    bool: _int,
    float: _float,
    Decimal: _decimal,
    str: _str,
    bytes: _bytes,
    date: _date,
    datetime: _datetime,
    time: _time,
    timedelta: _timedelta,
    tuple: _tuple,
    list: _list,
}


def _encoder(value: object) -> Callable[[Any], bytes]:
    """For subclasses and records: whoever has the ``__lt__`` of a known type sorts as it does."""
    cls = type(value)
    less = getattr(cls, "__lt__", None)
    for base in cls.__mro__:
        encode = _ENCODERS.get(base)
        if encode is not None and less is getattr(base, "__lt__", None):
            return encode
    if isinstance(value, msgspec.Struct):
        if type(value).__struct_config__.order:
            return _struct
    elif is_dataclass(value) and _orders(cls):
        return _record
    raise _unordered(value)


def _orders(cls: type) -> bool:
    """Whether the comparison in force is the one that ``dataclass(order=True)`` made."""
    owner = next(base for base in cls.__mro__ if "__lt__" in base.__dict__)
    parameters = owner.__dict__.get("__dataclass_params__")
    return parameters is not None and bool(parameters.order)
