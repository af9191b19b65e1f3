"""Celery's JSON: dates, decimals, UUIDs and bytes among plain values, with kombu's marks."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, json

from outlast.errors import DecodeError, EncodeError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Others", "check_result", "plain", "restore", "stand_in", "stands_in"]

REPLACED = "outlast.replaced"

# A datetime is a date as well, so it comes first.
_MARKED: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (datetime, "datetime", lambda value: value.isoformat()),
    (date, "date", lambda value: value.isoformat()),
    (time, "time", lambda value: value.isoformat()),
    (Decimal, "decimal", str),
    (uuid.UUID, "uuid", lambda value: {"hex": value.hex}),
)
_READ: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": lambda text: datetime.fromisoformat(text).date(),
    "time": time.fromisoformat,
    "decimal": Decimal,
    "uuid": lambda fields: uuid.UUID(hex=fields["hex"]),
    "bytes": lambda text: text.encode(),
    "base64": base64.b64decode,
}


def plain(value: Any) -> Any:
    """The value as JSON can carry it: tuples become lists, as they do on their way through Celery.

    Raises ``EncodeError`` for what Celery's JSON doesn't take either.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    for kind, name, write in _MARKED:
        if isinstance(value, kind):
            return {"__type__": name, "__value__": write(value)}
    if isinstance(value, bytes):
        try:
            return {"__type__": "bytes", "__value__": value.decode()}
        except UnicodeDecodeError:
            return {"__type__": "base64", "__value__": base64.b64encode(value).decode()}
    own = getattr(value, "__json__", None)
    if callable(own):
        return plain(own())
    raise EncodeError(
        f"{type(value).__name__} can't be carried as JSON: hand over an id, or plain values"
    )


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if isinstance(key, int | float):
        return str(key)
    raise EncodeError(f"a dict's key of type {type(key).__name__} can't be carried as JSON")


def restore(value: Any) -> Any:
    """What ``plain`` made of a value, back. Raises ``DecodeError`` for a mark nobody knows."""
    if isinstance(value, list):
        return [restore(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"__type__", "__value__"}:
        return {key: restore(item) for key, item in value.items()}
    name = value["__type__"]
    try:
        return _READ[name](restore(value["__value__"]))
    except Exception as error:
        raise DecodeError(f"no value of type {name!r} could be read: {error}", b"") from error


class Others(Struct, frozen=True):
    """What runs in place of a job: the one whose result is its, and all that come before that."""

    end: str
    before: list[str]


def stand_in(end: str, before: list[str]) -> dict[str, Any]:
    """What a job returns in whose place others run."""
    return {"__type__": REPLACED, "__value__": {"end": end, "before": before}}


def stands_in(result: bytes | None) -> Others | None:
    """The others, if that is what a job returned; no task can return such by itself."""
    if result is None or not result.startswith(_MARK):
        return None
    return json.decode(result, type=_Replaced).others


def check_result(value: Any) -> None:
    """Raises ``EncodeError`` for a value that would be taken for others that stand in."""
    if isinstance(value, dict) and value.get("__type__") == REPLACED:
        raise EncodeError(f"a task can't return a value that is marked as {REPLACED}")


class _Replaced(Struct, frozen=True):
    others: Others = field(name="__value__")


_MARK = b'{"__type__":"%s"' % REPLACED.encode()
