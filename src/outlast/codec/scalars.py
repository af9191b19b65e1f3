"""The kinds of one JSON value: scalars, types with a text, and what has no annotation."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from outlast.codec.kinds import Kind, Misfit, too_deep, type_name

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import PurePath

__all__ = [
    "BoolKind",
    "ConvertedKind",
    "DecimalKind",
    "FloatKind",
    "IntKind",
    "NoneKind",
    "PathKind",
    "PlainKind",
    "StrKind",
]

# CPython refuses to print longer ones by default (CVE-2020-10735), and msgspec to read them, which
# counts the sign.
MAX_DIGITS = 4300
_TOO_BIG = 10**MAX_DIGITS
_TOO_SMALL = -(10 ** (MAX_DIGITS - 1))


class _Scalar(Kind):
    __slots__ = ()
    of: ClassVar[type]
    shape: ClassVar[str]

    def __init__(self) -> None:
        super().__init__("None" if self.of is type(None) else self.of.__name__)

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset((self.shape,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is self.of:
            return value
        raise self.misfit(value)

    def load(self, wire: Any) -> Any:
        if type(wire) is self.of:
            return wire
        raise self.misfit_wire(wire)

    def same(self, values: Collection[Any]) -> bool:
        return set(map(type, values)) <= {self.of}


class StrKind(_Scalar):
    """Text. Lone surrogates are found by the encoder."""

    __slots__ = ()
    of, shape, exact, wired = str, "str", str, str


class BoolKind(_Scalar):
    """True and False."""

    __slots__ = ()
    of, shape, exact, wired = bool, "bool", bool, bool


class NoneKind(_Scalar):
    """None."""

    __slots__ = ()
    of, shape, exact, wired = type(None), "null", type(None), type(None)


class IntKind(_Scalar):
    """Integers of any size up to 4300 digits."""

    __slots__ = ()
    of, shape, wired = int, "int", int

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not int:
            raise self.misfit(value)
        _check_int(value)
        return value

    def same(self, values: Collection[Any]) -> bool:
        return set(map(type, values)) == {int} and (
            min(values) > _TOO_SMALL and max(values) < _TOO_BIG
        )


class FloatKind(_Scalar):
    """Finite numbers. An int is taken, as type checkers do, and arrives as the float it equals."""

    __slots__ = ()
    of, shape, wired = float, "float", float

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is float:
            _check_float(value)
            return value
        if type(value) is int:
            return _as_float(value)
        raise self.misfit(value)

    def load(self, wire: Any) -> Any:
        if type(wire) is float:
            return wire
        if type(wire) is int:
            return _as_float(wire)
        raise self.misfit_wire(wire)

    def same(self, values: Collection[Any]) -> bool:
        return set(map(type, values)) == {float} and all(map(isfinite, values))


def _check_int(value: int) -> None:
    if not _TOO_SMALL < value < _TOO_BIG:
        raise Misfit(f"an int of more than {MAX_DIGITS} digits and sign (the limit)")


def _check_float(value: float) -> None:
    if not isfinite(value):
        raise Misfit("NaN and infinity have no JSON; only finite floats can be stored")


def _as_float(value: int) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise Misfit("an int too large for a float") from None
    if number != value:
        raise Misfit("an int that no float equals; annotate it as int")
    return number


class PlainKind(Kind):
    """What no annotation describes: only values that JSON gives back as they were."""

    __slots__ = ()
    _atoms: ClassVar[frozenset[type]] = frozenset((str, bool, type(None)))

    def __init__(self) -> None:
        super().__init__("Any")

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((str, bool, type(None), int, float, list, dict))

    @property
    def shapes(self) -> frozenset[str]:
        return frozenset(("null", "bool", "int", "float", "str", "array", "object"))

    def dump(self, value: Any, room: int) -> Any:
        of = type(value)
        if of in self._atoms:
            return value
        if of is int:
            _check_int(value)
        elif of is float:
            _check_float(value)
        elif of is list:
            self._dump_list(value, room - 1)
        elif of is dict:
            self._dump_dict(value, room - 1)
        else:
            raise self.misfit(value)
        return value

    def load(self, wire: Any) -> Any:
        return wire

    def same(self, values: Collection[Any]) -> bool:
        return set(map(type, values)) <= self._atoms

    def misfit(self, value: Any) -> Misfit:
        return Misfit(
            f"{type_name(type(value))} would come back changed from JSON; annotate it with its type"
        )

    def _dump_list(self, value: list[Any], room: int) -> None:
        if room < 0:
            raise too_deep()
        if self.same(value):
            return
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007  the handler reads it
                self.dump(item, room)
        except Misfit as misfit:
            misfit.within(f"[{index}]")
            raise

    def _dump_dict(self, value: dict[Any, Any], room: int) -> None:
        if room < 0:
            raise too_deep()
        if not set(map(type, value)) <= {str}:
            other = next(type(key) for key in value if type(key) is not str)
            raise Misfit(
                f"a key of type {type_name(other)} would come back changed from JSON; "
                "annotate it as dict[key type, value type]"
            )
        if self.same(value.values()):
            return
        try:
            for item in value.values():
                self.dump(item, room)
        except Misfit as misfit:
            misfit.within("[...]")
            raise


class ConvertedKind(Kind):
    """Types that msgspec itself writes as one text and reads back exactly."""

    __slots__ = ("of",)

    def __init__(self, of: type) -> None:
        super().__init__(type_name(of))
        self.of = of

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self.of:
            raise self.misfit(value)
        return msgspec.to_builtins(value)

    def load(self, wire: Any) -> Any:
        if type(wire) is not str:
            raise self.misfit_wire(wire)
        try:
            return msgspec.convert(wire, self.of)
        except (ValueError, ArithmeticError) as error:
            raise Misfit(f"not the text of a {self.name}") from error


class DecimalKind(ConvertedKind):
    """Finite decimals, digit by digit."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Decimal)

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not Decimal:
            raise self.misfit(value)
        if not value.is_finite():
            raise Misfit("only finite decimals can be stored")
        return str(value)

    def load(self, wire: Any) -> Any:
        if type(wire) is not str:
            raise self.misfit_wire(wire)
        try:
            value = Decimal(wire)
        except InvalidOperation as error:
            raise Misfit("not the text of a decimal") from error
        if not value.is_finite():
            raise Misfit("only finite decimals can be stored")
        return value


class PathKind(Kind):
    """File names, as text: what it names is looked up where the task runs."""

    __slots__ = ("_made", "of")

    def __init__(self, of: type[PurePath]) -> None:
        super().__init__(type_name(of))
        self.of = of
        # Path() makes a PosixPath or a WindowsPath.
        self._made = type(of())

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self._made,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self._made:
            raise self.misfit(value)
        return str(value)

    def load(self, wire: Any) -> Any:
        if type(wire) is not str:
            raise self.misfit_wire(wire)
        return self.of(wire)
