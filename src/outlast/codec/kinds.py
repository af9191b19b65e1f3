"""What a kind of value is to the codec, and what doesn't fit one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Kind", "Misfit", "alike", "too_deep", "type_name"]


class Misfit(Exception):
    """A value that doesn't fit its kind. ``path`` grows while it rises through the containers."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = ""

    def within(self, step: str) -> None:
        """Note the container's own step to the value at fault."""
        if len(self.path) < 400:
            self.path = step + self.path


def type_name(of: Any) -> str:
    """A class or annotation as people write it."""
    if isinstance(of, type) and not hasattr(of, "__args__"):
        module, name = of.__module__, of.__qualname__
        return name if module == "builtins" else f"{module}.{name}"
    return repr(of).replace("typing.", "")


class Kind(ABC):
    """How values of one annotated type become JSON values, and come back as they were.

    ``dump`` checks a value and gives its wire form, made of None, bool, int, float, str, list and
    dict with str keys; ``room`` is how many levels of lists and objects it may use. ``load`` takes
    a wire form that may come from anywhere. Both raise ``Misfit``, which never names a value.
    """

    __slots__ = ("name",)

    exact: ClassVar[type | None] = None
    """Values of exactly this type are their own wire form and need no look at all."""
    wired: ClassVar[type | None] = None
    """Wire forms of exactly this type are the value itself."""
    sure: bool = True
    """False where code of the user takes part, so that each value is tried out at enqueue."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def accepts(self) -> frozenset[type]:
        """The exact Python types of the values."""

    @property
    def shapes(self) -> frozenset[str]:
        """The JSON shapes of the wire forms: null, bool, int, float, str, array, object."""
        return frozenset(("str",))

    @abstractmethod
    def dump(self, value: Any, room: int) -> Any:
        """The wire form of ``value``."""

    @abstractmethod
    def load(self, wire: Any) -> Any:
        """The value of a wire form."""

    def same(self, values: Collection[Any]) -> bool:
        """True if each of ``values`` is known to be its own wire form, found out in C."""
        return False

    def misfit(self, value: Any) -> Misfit:
        """What to say of a value of another type."""
        found = type(value)
        message = f"expected {self.name}, got {type_name(found)}"
        if any(issubclass(found, accepted) for accepted in self.accepts):
            message += ", a subclass that would not come back as what it is"
        return Misfit(message)

    def misfit_wire(self, wire: Any) -> Misfit:
        """What to say of a wire form of another shape."""
        return Misfit(f"expected {self.name}, found the JSON type {type(wire).__name__}")


def too_deep() -> Misfit:
    """What to say when the room is used up."""
    return Misfit("nests too deep")


def alike(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down, zones included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            key in other and alike(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, set | frozenset):
        return bool(one == other) and set(map(type, one)) == set(map(type, other))
    fields = getattr(type(one), "model_fields", None)
    if fields is not None:
        return alike(one.__pydantic_extra__, other.__pydantic_extra__) and all(
            alike(getattr(one, name), getattr(other, name)) for name in fields
        )
    if hasattr(one, "tzinfo"):
        return bool(one == other) and _zone_and_fold(one) == _zone_and_fold(other)
    return bool(one == other)


def _zone_and_fold(moment: Any) -> tuple[Any, int]:
    return getattr(moment.tzinfo, "key", None), moment.fold
