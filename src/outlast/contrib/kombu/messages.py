"""Messages as jobs: what of a message the store has to know, and the message that comes back."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps, loads
from msgspec import DecodeError, json

from outlast.contrib.kombu.names import our_name
from outlast.job import Job
from outlast.limits import MAX_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Claim

__all__ = ["delivered", "due", "encode", "job_for", "note_ids", "noted_ids"]

UNSURE = "outlast-unsure"
"""Where a message that may be stored has its ids meanwhile; it is never stored with them."""

_plain = json.Decoder().decode


def encode(message: dict[str, Any]) -> bytes:
    """A message as it is stored: kombu's JSON, which knows dates, UUIDs and the like."""
    return str(dumps(message)).encode()


def job_for(
    id: str, queue: str, message: dict[str, Any], payload: bytes, now: float, ttl: float | None
) -> Job:
    """The job that carries a message. It leaves no trace once it is acknowledged.

    A task's own ``expires`` is left to the worker, which writes down that it was revoked; other
    messages are gone when their time is over. ``ttl`` is what the queue says, in seconds.
    """
    headers, properties = message.get("headers") or {}, message["properties"]
    moment = due(headers, now)
    lives = ttl
    if "task" not in headers and properties.get("expiration") is not None:
        own = _number(properties["expiration"])
        if own is not None:
            lives = min(own / 1000, own / 1000 if lives is None else lives)
    return Job(
        id=id,
        queue=our_name(queue),
        payload=payload,
        priority=_priority(properties.get("priority")),
        run_at=moment,
        ttl=None if lives is None else max(lives, 0.0),
        keep=0.0,
        max_crashes=None,
    )


def note_ids(message: dict[str, Any], jobs: Sequence[Job]) -> None:
    """Note that a message may be stored, under these ids, for whoever sends it again.

    kombu does that with the same properties, and Celery, for what a worker sends, with the same
    headers. It is for this process alone, and for the same body.
    """
    ids = {job.queue: job.id for job in jobs}
    _kept(message)[UNSURE] = {"pid": os.getpid(), "body": _digest(message), "ids": ids}


def noted_ids(message: dict[str, Any]) -> dict[str, str]:
    """The ids that were noted, by our names of the queues. They are noted no longer."""
    noted = _kept(message).pop(UNSURE, None)
    if not isinstance(noted, dict) or noted.get("pid") != os.getpid():
        return {}
    ids: dict[str, str] = noted["ids"] if noted["body"] == _digest(message) else {}
    return ids


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    """What is the same object however often it is tried to send a message."""
    headers: dict[str, Any] = message.get("headers") or {}
    properties: dict[str, Any] = message["properties"]
    return headers if "task" in headers else properties


def _digest(message: dict[str, Any]) -> str:
    return hashlib.sha256(repr(message["body"]).encode("utf-8", "surrogatepass")).hexdigest()


def due(headers: dict[str, Any], now: float) -> float | None:
    """When a message is to be delivered, if that is later than now: the ``eta`` of a task."""
    eta = headers.get("eta")
    if not eta:
        return None
    try:
        moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
        stamp = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None  # the worker says what is wrong with it
    return stamp if stamp > now else None


def delivered(claim: Claim, tag: str) -> dict[str, Any]:
    """The message of a claim, marked if it was delivered before."""
    message = _decode(claim.job.payload)
    properties = message["properties"]
    properties["delivery_tag"] = tag
    if claim.job.attempt > 1:
        properties.setdefault("delivery_info", {})["redelivered"] = True
        message.setdefault("headers", {})["redelivered"] = True
    return message


def _decode(payload: bytes) -> dict[str, Any]:
    """As kombu reads it, and in a fifth of the time where it has none of kombu's own marks."""
    message: dict[str, Any]
    if b"__type__" not in payload:
        try:
            message = _plain(payload)
            return message
        except DecodeError:
            pass  # such as NaN, which Python's JSON has
    message = loads(payload)
    return message


def _priority(value: Any) -> int:
    """Higher is sooner, as in AMQP."""
    number = _number(value)
    return 0 if number is None else int(max(0, min(number, MAX_PRIORITY)))


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) else None
