"""A function's signature as a codec: arguments to bytes at enqueue, bytes to arguments at work."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from outlast.codec.containers import wire_bytes
from outlast.codec.kinds import Kind, Misfit
from outlast.codec.limits import MAX_BYTES, MAX_DEPTH, check_limits, read
from outlast.codec.parameters import KEYWORDS, REST, read_parameters
from outlast.codec.values import ItemCodec, check_return, explain, refuse
from outlast.errors import DecodeError, EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["Signature"]

_sorted_bytes = msgspec.json.Encoder(order="deterministic").encode


class Signature:
    """Carries the arguments and the result of one function, as its annotations say.

    The payload is one JSON object: arguments as passed by parameter name, ``*args`` under ``"*"``
    and ``**kwargs`` under ``"**"``. What was not passed is not in it, so the defaults are those of
    the function that runs. ``name`` is the task's in messages; ``max_bytes`` and ``max_depth``
    bound payload and result, each.

    Raises ``ConfigurationError`` naming the function and the parameter, if an annotation can't be
    looked up or its values can't be carried.

    >>> async def send(order: int, *, to: str) -> str: ...
    >>> signature = Signature(send)
    >>> signature.encode((42,), {"to": "a@b.example"})
    b'{"order":42,"to":"a@b.example"}'
    """

    __slots__ = (
        "_by_keyword", "_by_position", "_kinds", "_label", "_loads", "_max_bytes", "_max_depth",
        "_places", "_required", "_result", "_room", "_shown", "_unsure", "_whole",
        "decode_result", "encode_result",
    )  # fmt: skip

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        max_bytes: int = MAX_BYTES,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self._label = f"{name or getattr(fn, '__qualname__', repr(fn))}()"
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        check_limits(max_bytes, max_depth)
        found = read_parameters(fn, self._label)
        kinds = found.kinds
        self._kinds: dict[str, Kind] = kinds
        self._shown = found.shown
        self._room = max_depth - 1
        self._places = tuple(
            (name, kinds[name].exact, kinds[name].dump) for name in found.by_position
        )
        self._by_position = tuple(found.by_position)
        self._by_keyword = frozenset(found.by_keyword)
        self._required = frozenset(found.required)
        self._unsure = tuple(name for name, kind in kinds.items() if not kind.sure)
        self._loads = tuple(
            (name, kinds[name].wired, kinds[name].load) for name in found.by_position
        )
        # Where no keyword is a must, as many arguments as positions are all there can be.
        self._whole = -1 if found.required - set(found.by_position) else len(found.by_position)
        result = ItemCodec(
            found.result,
            max_bytes=max_bytes,
            max_depth=max_depth,
            label=f"the result of {self._label}",
        )
        self.encode_result = result.encode
        self.decode_result = result.decode

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Check the arguments of one call and make its payload.

        Raises ``EncodeError``, a ``TypeError``, naming the parameter: missing, unexpected, of
        another type than annotated, or one that JSON would change; and if the payload is larger
        or nests deeper than the limits.
        """
        tree: dict[str, Any] = {}
        name = ""
        try:
            if len(args) == self._whole and not kwargs:
                # With zip() it would take twice as long.
                for at, (name, exact, dump) in enumerate(self._places):
                    value = args[at]
                    tree[name] = value if type(value) is exact else dump(value, self._room)
            else:
                tree = self._bind(args, kwargs)
                for name, value in tree.items():
                    tree[name] = self._kinds[name].dump(value, self._room)
            data = wire_bytes(tree)
        except UnicodeError as error:
            refuse(self._argument(_unprintable(tree) or name), error, self._max_depth)
        except (Misfit, RecursionError) as error:
            refuse(self._argument(name), error, self._max_depth)
        if len(data) > self._max_bytes:
            raise EncodeError(
                f"{self._label}: the arguments take {len(data)} bytes, more than the limit of "
                f"{self._max_bytes}; store large data elsewhere and pass its name"
            )
        if self._unsure:
            self._try_out(tree)
        return data

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a payload, to be called with: ``fn(*args, **kwargs)``.

        Raises ``DecodeError``, which keeps the bytes, if they don't fit the signature. Nothing is
        imported or run because of what they say, except the annotated classes' own constructors.
        """
        args: list[Any] = []
        name = ""
        try:
            tree = read(payload, self._max_bytes, self._max_depth)
            if type(tree) is not dict:
                raise Misfit("not an object of arguments")
            for name, wired, load in self._loads:
                if name not in tree:
                    break
                value = tree.pop(name)
                args.append(value if type(value) is wired else load(value))
        except MemoryError:
            raise
        except Exception as error:
            self._refuse_payload(payload, name, error)
        if tree or len(args) != self._whole:
            return self._decode_rest(payload, args, tree)
        return tuple(args), {}

    def from_plain(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call that came as plain JSON values, from who knows no annotations.

        Raises ``EncodeError`` or ``DecodeError`` if they don't fit the signature.
        """
        try:
            payload = wire_bytes(self._bind(tuple(args), kwargs))
        except UnicodeError as error:
            raise EncodeError(f"{self._label}: {error}") from None
        return self.decode(payload)

    def digest(self, payload: bytes) -> bytes:
        """16 bytes that stand for the arguments as passed, however they were passed.

        Two payloads have one digest if their arguments are equal: by position or by name, with
        sets and dicts in any order. What was not passed doesn't count. Raises ``DecodeError``.
        """
        try:
            tree = read(payload, self._max_bytes, self._max_depth)
        except Misfit as error:
            self._refuse_payload(payload, "", error)
        return hashlib.blake2b(_sorted_bytes(tree), digest_size=16).digest()

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._by_position
        if len(args) > len(names):
            tree = self._bind_rest(args)
        else:
            tree = dict(zip(names, args, strict=False))
        if kwargs:
            self._bind_keywords(tree, kwargs)
        if not self._required <= tree.keys():
            self._refuse_missing(tree)
        return tree

    def _bind_rest(self, args: tuple[Any, ...]) -> dict[str, Any]:
        names = self._by_position
        if REST not in self._kinds:
            raise EncodeError(
                f"{self._label} takes {len(names)} positional arguments, but {len(args)} were given"
            )
        tree: dict[str, Any] = dict(zip(names, args, strict=False))
        tree[REST] = list(args[len(names) :])
        return tree

    def _bind_keywords(self, tree: dict[str, Any], kwargs: Mapping[str, Any]) -> None:
        extra: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name not in self._by_keyword:
                extra[name] = value
            elif name in tree:
                raise EncodeError(f"{self._label}: argument {name!r} was given twice")
            else:
                tree[name] = value
        if not extra:
            return
        if KEYWORDS not in self._kinds:
            raise EncodeError(f"{self._label} takes no argument {_listed(extra)} by keyword")
        tree[KEYWORDS] = extra

    def _refuse_missing(self, tree: dict[str, Any]) -> NoReturn:
        missing = [name for name in self._kinds if name in self._required and name not in tree]
        raise EncodeError(f"{self._label} misses the argument {_listed(missing)}")

    def _try_out(self, tree: dict[str, Any]) -> None:
        for name in self._unsure:
            if name in tree:
                try:
                    check_return(self._kinds[name], wire_bytes(tree[name]), self._max_depth)
                except (Misfit, UnicodeError, RecursionError) as error:
                    refuse(self._argument(name), error, self._max_depth)

    def _decode_rest(
        self, payload: bytes, args: list[Any], tree: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What goes by keyword or is extra: ``tree`` holds what ``args`` doesn't."""
        kwargs: dict[str, Any] = {}
        rest: list[Any] = []
        extra: dict[str, Any] = {}
        name = ""
        try:
            for name, wire in tree.items():
                kind = self._kinds.get(name)
                if kind is None:
                    raise Misfit("the function has no such parameter")
                if name == REST:
                    rest = kind.load(wire)
                elif name == KEYWORDS:
                    extra = kind.load(wire)
                elif name in self._by_keyword:
                    kwargs[name] = kind.load(wire)
                else:
                    raise Misfit("positional, but one before it is missing")
            name = ""
            self._check_call(args, rest, kwargs, extra)
        except MemoryError:
            raise
        except Exception as error:
            self._refuse_payload(payload, name, error)
        return (*args, *rest), {**kwargs, **extra}

    def _check_call(
        self, args: list[Any], rest: list[Any], kwargs: dict[str, Any], extra: dict[str, Any]
    ) -> None:
        """Refuse what can't be called with."""
        if rest and len(args) < len(self._by_position):
            raise Misfit("more positional arguments, but one before them is missing")
        if not self._by_keyword.isdisjoint(extra):
            raise Misfit("an argument is there twice")
        missing = self._required - kwargs.keys() - set(self._by_position[: len(args)])
        if missing:
            raise Misfit(f"misses the argument {_listed(sorted(missing))}")

    def _refuse_payload(self, payload: bytes, name: str, error: Exception) -> NoReturn:
        label = self._argument(name) if name else f"{self._label}: the payload"
        raise DecodeError(explain(label, error, self._max_depth), payload) from error

    def _argument(self, name: str) -> str:
        return f"{self._label}: argument {self._shown.get(name, name)[:80]!r}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:80]) for name in names)


def _unprintable(tree: dict[str, Any]) -> str:
    """The argument that the encoder stumbles over."""
    for name, wire in tree.items():
        try:
            wire_bytes(wire)
        except UnicodeError:
            return name
        except TypeError:  # not yet a wire form: the one at fault came before
            break
    return ""
