"""Reading bytes that may come from anyone: size, depth and double keys, before anything is made."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from outlast.codec.kinds import Misfit
from outlast.errors import ConfigurationError

__all__ = ["MAX_BYTES", "MAX_DEPTH", "check_limits", "read"]

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
# A level takes a few frames of the interpreter's stack, which has room for a thousand.
DEEPEST = 200

_parse = msgspec.json.Decoder().decode
_print = msgspec.json.Encoder().encode
# A string without an end runs to the end of the data, so that no byte is looked at twice.
_STRING = rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKENS = re.compile(_STRING + rb"|[\[\]{}:]", re.DOTALL)
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_limits(max_bytes: int, max_depth: int) -> None:
    """Raise ``ConfigurationError`` for limits that make no sense."""
    if type(max_bytes) is not int or max_bytes < 1:
        raise ConfigurationError(f"the limit of bytes must be an int above 0, not {max_bytes!r}")
    if type(max_depth) is not int or not 1 <= max_depth <= DEEPEST:
        raise ConfigurationError(
            f"the limit of depth must be an int from 1 to {DEEPEST}, not {max_depth!r}"
        )


def read(data: bytes, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """Parse JSON of at most ``max_bytes`` and ``max_depth`` levels without double keys.

    Raises ``Misfit`` for anything else. NaN, infinity, numbers a float can't hold, ints of more
    than 4300 digits and lone surrogates are refused by the parser.
    """
    if len(data) > max_bytes:
        raise Misfit(f"{len(data)} bytes, more than the limit of {max_bytes}")
    # No more levels than opening brackets: two counts in C settle nearly all messages.
    objects = data.count(b"{")
    if data.count(b"[") + objects > max_depth:
        _check_depth(data, max_depth)
    try:
        tree = _parse(data)
        canonical = not objects or _print(tree) == data
    except (ValueError, RecursionError) as error:
        raise Misfit(f"not JSON that can be read: {error}") from error
    # The parser keeps the last of two equal keys. What prints as it was read, as all that we wrote
    # does, can't hold one twice; anything else is read again with care.
    if not canonical:
        _check_keys(data)
    return tree


def _check_depth(data: bytes, max_depth: int) -> None:
    """Refuse data of more levels: take the innermost one away, again and again, all in C."""
    brackets = _STRINGS.sub(b"", data).translate(_ALIKE, _NO_BRACKETS)
    for _ in range(max_depth):
        outer = brackets.replace(b"[]", b"")
        if len(outer) == len(brackets):
            break
        brackets = outer
    if brackets:
        raise Misfit(f"nests deeper than the limit of {max_depth} levels, or has no end")


def _check_keys(data: bytes) -> None:
    """Refuse an object that has a key twice. ``data`` is known to be sound JSON."""
    open_keys: list[set[str]] = []
    last = b""
    for token in _TOKENS.finditer(data):
        mark = token[0]
        if mark == b":":
            key = _parse(last)
            if key in open_keys[-1]:
                raise Misfit("a key twice in one object")
            open_keys[-1].add(key)
        elif mark in (b"[", b"{"):
            open_keys.append(set())
        elif mark in (b"]", b"}"):
            open_keys.pop()
        else:
            last = mark
