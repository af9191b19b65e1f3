"""Celery's wire format: messages of protocol 2 (and 1, to read) as calls, and calls as messages."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from outlast.contrib.celery.beside.bodies import Refused, parse, plain, unpack

__all__ = ["Call", "Parcel", "Times", "read", "stand_in", "times", "write"]

_json = msgspec.json.Encoder().encode


class Parcel(Struct, frozen=True, kw_only=True):
    """A message as a carrier has it: parts that it doesn't look into."""

    body: Any
    """Bytes, or a text with ``body_encoding`` among the properties."""
    content_type: str = "application/json"
    content_encoding: str = "utf-8"
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}


class Call(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a task by its Celery name, with all that its end has to set off.

    ``queue`` is the Celery queue it came from, or is to go to; empty if nobody said which.
    ``priority`` is as the carrier has it, and ``eta``, ``expires`` and ``timelimit`` as the sender
    wrote them.
    """

    id: str
    task: str
    queue: str = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    callbacks: list[Any] | None = None
    errbacks: list[Any] | None = None
    chain: list[Any] | None = None
    chord: Any = None
    group: str | None = None
    group_index: int | None = None
    root: str | None = None
    parent: str | None = None
    retries: int = 0
    ignore: bool = False
    reply_to: str | None = None
    origin: str | None = None
    priority: int | None = None
    eta: str | None = None
    expires: str | None = None
    timelimit: list[float | None] | None = None
    nesting: int = 0
    stamps: dict[str, Any] | None = None
    stamped: list[str] | None = None


class Times(Struct, frozen=True):
    """When a call is due, when it expires (seconds since 1970), and how long it may run."""

    due: float | None
    expires: float | None
    limit: float | None


def read(parcel: Parcel, queue: str) -> Call:
    """The call that a message asks for. Raises ``Refused`` for what can't be one."""
    headers, properties = parcel.headers, parcel.properties
    tree = parse(
        unpack(parcel.body, properties.get("body_encoding")),
        parcel.content_type,
        parcel.content_encoding,
        headers.get("compression"),
    )
    if "task" in headers:
        call = _second(headers, tree)
    elif isinstance(tree, dict) and "task" in tree:
        call = _first(tree)
    else:
        raise Refused(
            "it names no task: neither its headers (Celery's protocol 2) nor its body (protocol 1)"
        )
    call |= {
        "id": call["id"] or properties.get("correlation_id") or stand_in(parcel),
        "queue": queue,
        "reply_to": properties.get("reply_to") or None,
        "priority": properties.get("priority"),
        "args": plain(call["args"] or []),
        "kwargs": plain(call["kwargs"] or {}),
    }
    try:
        # Only what differs from the defaults, so that null stands for "not given" everywhere.
        found = {name: value for name, value in call.items() if value is not None}
        made = msgspec.convert(found, Call, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(f"it is no message of Celery: {error}") from None
    times(made)
    return made


def _second(headers: dict[str, Any], tree: Any) -> dict[str, Any]:
    if not isinstance(tree, list | tuple) or not 2 <= len(tree) <= 3:
        raise Refused("its body is not [args, kwargs, embed] as Celery's protocol 2 has it")
    args, kwargs, *rest = tree
    embed = (rest[0] if rest else None) or {}
    if not isinstance(embed, dict):
        raise Refused("the third part of its body is no object")
    return {
        "id": headers.get("id"),
        "task": headers["task"],
        "args": args,
        "kwargs": kwargs,
        "root": headers.get("root_id"),
        "parent": headers.get("parent_id"),
        "group": headers.get("group"),
        "group_index": headers.get("group_index"),
        "retries": headers.get("retries"),
        "ignore": headers.get("ignore_result"),
        "origin": headers.get("origin"),
        "eta": headers.get("eta"),
        "expires": headers.get("expires"),
        "timelimit": headers.get("timelimit"),
        "nesting": headers.get("replaced_task_nesting"),
        "stamps": headers.get("stamps") or None,
        "stamped": headers.get("stamped_headers"),
        **{name: embed.get(name) for name in ("callbacks", "errbacks", "chain", "chord")},
    }


def _first(tree: dict[str, Any]) -> dict[str, Any]:
    same = ("id", "task", "args", "kwargs", "retries", "eta", "expires", "timelimit", "callbacks",
            "errbacks", "chord")  # fmt: skip
    return {name: tree.get(name) for name in same} | {"group": tree.get("taskset")}


def stand_in(parcel: Parcel) -> str:
    """An id for a message without one: the same whenever it is read again."""
    told = _json([parcel.headers, parcel.properties.get("delivery_tag")])
    body = parcel.body if isinstance(parcel.body, bytes) else _json(parcel.body)
    return f"celery-{hashlib.sha256(told + body).hexdigest()[:32]}"


def times(call: Call) -> Times:
    """Raises ``Refused`` if one of them can't be read."""
    limits = [one for one in call.timelimit or () if one is not None and one > 0]
    return Times(
        _moment("eta", call.eta), _moment("expires", call.expires), min(limits, default=None)
    )


def _moment(what: str, text: str | None) -> float | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise Refused(f"{what} {text!r}: {error}") from None


def write(call: Call) -> Parcel:
    """The message of a call, with all that Celery's own producers put into one."""
    headers = {
        "lang": "py",
        "task": call.task,
        "id": call.id,
        "shadow": None,
        "eta": call.eta,
        "expires": call.expires,
        "group": call.group,
        "group_index": call.group_index,
        "retries": call.retries,
        "timelimit": call.timelimit or [None, None],
        "root_id": call.root or call.id,
        "parent_id": call.parent,
        "argsrepr": _shown(call.args),
        "kwargsrepr": _shown(call.kwargs),
        "origin": call.origin or _origin(),
        "ignore_result": call.ignore,
        "replaced_task_nesting": call.nesting,
        "stamped_headers": call.stamped,
        "stamps": call.stamps or {},
        **(call.stamps or {}),
    }
    embed = {
        "callbacks": call.callbacks,
        "errbacks": call.errbacks,
        "chain": call.chain,
        "chord": call.chord,
    }
    return Parcel(
        body=_json([call.args, call.kwargs, embed]),
        headers=headers,
        properties={
            "correlation_id": call.id,
            "reply_to": call.reply_to or "",
            "delivery_mode": 2,
            "priority": call.priority or 0,
        },
    )


def as_text(body: bytes) -> str:
    """A body for a carrier of texts, to be marked ``body_encoding: base64``."""
    return base64.b64encode(body).decode()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 1024 else text[:1021] + "..."


@lru_cache(maxsize=1)
def _origin() -> str:
    return f"outlast{os.getpid()}@{socket.gethostname()}"
