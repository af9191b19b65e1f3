"""Reads the options that people give to a task or to one call into the fields of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from outlast.errors import ConfigurationError, DecodeError
from outlast.job import DAY, Job, OnRepeat
from outlast.limits import REPEATS, check_job, check_name, shown
from outlast.retry import RetryPolicy
from outlast.store import Feature

__all__ = [
    "POLICY",
    "TaskOptions",
    "call_fields",
    "kept_with_key",
    "needs",
    "policy_of",
    "seconds",
    "task_options",
]

POLICY = "outlast-retry"
"""The header in which a call's own retry policy travels to the worker."""

HOUR = 3600.0
CENTURY = 36525 * DAY

Lane = Callable[..., "str | None"] | str | None
KeyOf = Callable[..., "str | None"]
KeepKey = float | timedelta | Literal["queued", "live"] | None


class TaskOptions(Struct, frozen=True, kw_only=True):
    """What ``@app.task`` was told, checked; durations are seconds."""

    queue: str = "default"
    retry: RetryPolicy = RetryPolicy()
    timeout: float | None = None
    priority: int = 0
    keep: float | None = DAY
    key: KeyOf | None = None
    keep_key: float = DAY
    key_queued: bool = False
    on_repeat: OnRepeat = "first"
    max_crashes: int | None = 3
    processes: bool = False
    lane: Lane = None
    headers: Mapping[str, str] = {}

    def job(self, task: str) -> Job:
        """The job that every call of the task is a copy of."""
        template = Job(
            id="template",
            task=task,
            queue=self.queue,
            timeout=self.timeout,
            priority=self.priority,
            keep=self.keep,
            keep_key=self.keep_key,
            key_queued=self.key_queued,
            on_repeat=self.on_repeat,
            max_attempts=self.retry.attempts,
            max_crashes=self.max_crashes,
            lane=self.lane if isinstance(self.lane, str) else None,
            headers=self.headers,
        )
        check_job(template)
        return template


def task_options(
    *,
    retry: RetryPolicy | int,
    timeout: float | timedelta | None,
    keep: float | timedelta | None,
    key: KeyOf | None,
    keep_key: KeepKey | UnsetType,
    on_repeat: OnRepeat,
    lane: Lane,
    headers: Mapping[str, str] | None,
    queue: str,
    priority: int,
    max_crashes: int | None,
    processes: bool,
) -> TaskOptions:
    """Check what ``@app.task`` was told. Raises ``ConfigurationError`` naming the option."""
    check_name(queue, "queue")
    if max_crashes is not None and type(max_crashes) is not int:
        raise ConfigurationError(f"max_crashes={max_crashes!r}: use a whole number, or None")
    return TaskOptions(
        queue=queue,
        retry=_policy(retry),
        timeout=_timeout(timeout),
        priority=priority,
        keep=_keep(keep),
        key=_key_of(key),
        on_repeat=_read_on_repeat(on_repeat)["on_repeat"],
        **_read_keep_key(_window(on_repeat, keep_key)),
        max_crashes=max_crashes,
        processes=bool(processes),
        lane=_lane(lane),
        headers=_headers(headers),
    )


def call_fields(template: Job, own: RetryPolicy, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the template that ``using`` changes; ``own`` is the task's retry policy.

    Raises ``ConfigurationError`` naming the option.
    """
    if given.get("delay") is not None and given.get("at") is not None:
        raise ConfigurationError("delay= and at= both say when to start: give one of them")
    fields: dict[str, Any] = {}
    if "on_repeat" in given and "keep_key" not in given and given["on_repeat"] in _QUEUED_ONLY:
        fields.update(_read_keep_key("queued"))
    for name, value in given.items():
        if name == "headers":
            fields["headers"] = {**template.headers, **_headers(value)}
        elif name != "retry":
            fields.update(_READERS[name](value))
    if "retry" in given:
        fields.update(_retry(fields.get("headers", template.headers), own, given["retry"]))
    changed = msgspec.structs.replace(template, **fields)
    _check_order(changed)
    check_job(changed)
    return fields


def policy_of(job: Job, own: RetryPolicy) -> RetryPolicy:
    """The retry policy that counts for a job: its call's own, else the task's.

    The classes of exceptions are always the task's, since no class travels with a job. Raises
    ``DecodeError`` if the header was tampered with.
    """
    text = job.headers.get(POLICY)
    if text is None:
        return own
    return _unpack(text, own)


def needs(job: Job, *, lane: bool = False, key: bool = False) -> Feature | None:
    """What a store must be able to do to take jobs like this one; None for the least."""
    return _needs(
        job.delay is not None or job.run_at is not None or job.max_attempts > 1,
        job.priority != 0,
        key or job.key is not None,
        (key or job.key is not None) and (job.key_queued or job.on_repeat != "first"),
        lane or job.lane is not None,
    )


@cache
def _needs(delay: bool, priority: bool, key: bool, repeats: bool, lane: bool) -> Feature | None:
    wanted = Feature(0)
    if delay:
        wanted |= Feature.DELAY
    if priority:
        wanted |= Feature.PRIORITY
    if key:
        wanted |= Feature.KEYS
    if repeats:
        wanted |= Feature.REPEATS
    if lane:
        wanted |= Feature.LANES
    return wanted or None


def seconds(name: str, value: float | timedelta) -> float:
    """A duration as seconds: finite, not negative, at most a century."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name}={shown(value)}: use seconds as a number, or a timedelta")
    if not 0 <= value <= CENTURY:
        raise ConfigurationError(
            f"{name}={shown(value)}: use a number of seconds from 0 to {CENTURY:.0f} (a century)"
        )
    return float(value)


def _policy(value: RetryPolicy | int) -> RetryPolicy:
    if isinstance(value, RetryPolicy):
        return value
    if type(value) is not int or value < 1:
        raise ConfigurationError(
            f"retry={shown(value)}: use a RetryPolicy, or how often to try as a whole number"
            " from 1 up"
        )
    return RetryPolicy(attempts=value)


def _timeout(value: float | timedelta | None) -> float | None:
    if value is None:
        return None
    timeout = seconds("timeout", value)
    if timeout == 0:
        raise ConfigurationError("timeout=0: use seconds above 0, or None for no limit")
    return timeout


def _keep(value: float | timedelta | None) -> float | None:
    if value is None:
        return None
    keep = seconds("keep", value)
    if keep < HOUR:
        raise ConfigurationError(
            f"keep={shown(value)}: a task's job is kept for at least {HOUR:.0f} seconds after its "
            "end (None: for ever), so that repeating an uncertain enqueue can't run it twice"
        )
    return keep


def _lane(value: Lane) -> Lane:
    if value is None or isinstance(value, str) or callable(value):
        return value
    raise ConfigurationError(
        f"lane={shown(value)}: use a text, or a function of the task's arguments that returns one"
    )


def _headers(value: Mapping[str, str] | None) -> dict[str, str]:
    try:
        headers = {} if value is None else dict(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"headers={shown(value)}: use a dict of texts") from None
    for name, text in headers.items():
        check_name(name, "header")
        if name.startswith("outlast-"):
            raise ConfigurationError(
                f"header {shown(name)}: names that begin with outlast- are ours"
            )
        _check_header(name, text)
    return headers


def _check_header(name: str, text: object) -> None:
    if not isinstance(text, str) or "\0" in text or _half_a_character(text):
        raise ConfigurationError(
            f"header {shown(name)}: its value {shown(text)} must be text without NUL"
        )


def _half_a_character(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _read_delay(value: float | timedelta | None) -> dict[str, Any]:
    delay = None if value is None else seconds("delay", value)
    return {"delay": delay or None, "run_at": None}


def _read_at(value: datetime | None) -> dict[str, Any]:
    return {"delay": None, "run_at": None if value is None else _moment("at", value)}


def _read_expires(value: float | timedelta | datetime | None) -> dict[str, Any]:
    if value is None:
        return {"ttl": None, "expires_at": None}
    if isinstance(value, datetime):
        return {"ttl": None, "expires_at": _moment("expires", value)}
    ttl = seconds("expires", value)
    if ttl == 0:
        raise ConfigurationError("expires=0: the job would be gone before anyone could start it")
    return {"ttl": ttl, "expires_at": None}


def _read_queue(value: str) -> dict[str, Any]:
    check_name(value, "queue")
    return {"queue": value}


def _read_key(value: str | KeyOf | None) -> dict[str, Any]:
    if callable(value):
        return {"key": None}
    # What the text may be is for check_job to say, for every store alike.
    if value is not None and not isinstance(value, str):
        raise ConfigurationError(f"key {shown(value)}: use a text")
    return {"key": value}


def _key_of(value: KeyOf | None) -> KeyOf | None:
    if value is None or callable(value):
        return value
    raise ConfigurationError(
        f"key={shown(value)}: a task's key is a function of its arguments that returns a text; one "
        "text for all calls of the task goes to using(key=...)"
    )


_QUEUED_ONLY = ("replace", "debounce", "throttle")
"""What only ever acts on a job that waits: its key is held no longer, if nothing else is said."""


def _window(on_repeat: str, keep_key: KeepKey | UnsetType) -> KeepKey:
    if keep_key is not UNSET:
        return keep_key
    return "queued" if on_repeat in _QUEUED_ONLY else DAY


def _read_on_repeat(value: object) -> dict[str, Any]:
    if not isinstance(value, str) or value not in REPEATS:
        raise ConfigurationError(
            f"on_repeat={shown(value)}: use one of {', '.join(sorted(REPEATS))}"
        )
    return {"on_repeat": value}


def _read_keep_key(value: KeepKey) -> dict[str, Any]:
    if value is None:
        return {"keep_key": CENTURY, "key_queued": False}
    if isinstance(value, str):
        if value not in ("queued", "live"):
            raise ConfigurationError(
                f'keep_key={shown(value)}: use seconds after the end, "queued", "live", or None'
                " for ever"
            )
        return {"keep_key": 0.0, "key_queued": value == "queued"}
    return {"keep_key": seconds("keep_key", value), "key_queued": False}


def kept_with_key(job: Job) -> float | None:
    """How long a job with a key is kept: as long as its key is, so that a repeat finds it."""
    if job.keep is None or job.keep_key >= CENTURY:
        return None
    return max(job.keep, job.keep_key)


def _read_lane(value: Lane) -> dict[str, Any]:
    lane = _lane(value)
    return {"lane": lane if isinstance(lane, str) else None}


def _moment(name: str, value: datetime) -> float:
    if not isinstance(value, datetime):
        raise ConfigurationError(f"{name}={shown(value)}: use a datetime with a time zone")
    if value.utcoffset() is None:
        raise ConfigurationError(
            f"{name}={shown(value)}: the datetime has no time zone, so it means another moment on "
            "another machine; give it one, such as tzinfo=timezone.utc"
        )
    return value.timestamp()


def _check_order(job: Job) -> None:
    """Refuse a job that is sure to expire before it is due."""
    never = (job.delay is not None and job.ttl is not None and job.ttl <= job.delay) or (
        job.run_at is not None and job.expires_at is not None and job.expires_at <= job.run_at
    )
    if never:
        raise ConfigurationError("expires= is not after delay= or at=: the job could never start")


def _retry(
    headers: Mapping[str, str], own: RetryPolicy, value: RetryPolicy | int
) -> dict[str, Any]:
    policy = _policy(value)
    headers = {name: text for name, text in headers.items() if name != POLICY}
    if isinstance(value, RetryPolicy):
        if (policy.on, policy.never) != (own.on, own.never):
            raise ConfigurationError(
                "retry=: on and never name classes, which don't travel with a job; set them at "
                "the task and leave them as they are here"
            )
        headers[POLICY] = _pack(policy)
    return {"headers": headers, "max_attempts": policy.attempts}


class _Packed(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    delay: float
    factor: float
    cap: float
    jitter: bool
    total: float | None


def _pack(policy: RetryPolicy) -> str:
    packed = _Packed(policy.delay, policy.factor, policy.cap, policy.jitter, policy.total)
    return msgspec.json.encode(packed).decode()


def _unpack(text: str, own: RetryPolicy) -> RetryPolicy:
    try:
        packed = msgspec.json.decode(text, type=_Packed)
        return replace(own, **msgspec.structs.asdict(packed))
    except (msgspec.MsgspecError, ConfigurationError, ValueError) as error:
        raise DecodeError(f"header {POLICY}: {error}", text.encode()) from error


_READERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "delay": _read_delay,
    "at": _read_at,
    "expires": _read_expires,
    "priority": lambda value: {"priority": value},
    "queue": _read_queue,
    "key": _read_key,
    "keep_key": _read_keep_key,
    "on_repeat": _read_on_repeat,
    "lane": _read_lane,
    "timeout": lambda value: {"timeout": _timeout(value)},
    "keep": lambda value: {"keep": _keep(value)},
}
