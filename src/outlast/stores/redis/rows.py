"""Jobs as the scripts are given them, and as they give them back."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.job import Claim, Failure, Job, Progress, Status
from outlast.limits import is_plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["STATES", "body_of", "claim_from", "dump", "job_from", "option_of", "payload_of"]

STATES = {
    "q": Status.QUEUED,
    "r": Status.RUNNING,
    "d": Status.DONE,
    "x": Status.DEAD,
    "c": Status.CANCELLED,
}

dump = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_load_failure = msgspec.json.Decoder(Failure).decode
_load_progress = msgspec.json.Decoder(Progress).decode

_DEFAULT = Job(id="")
_NAMES = ("codec", "timeout", "max_attempts", "headers")
_DEFAULTS = tuple(getattr(_DEFAULT, name) for name in _NAMES)


def body_of(job: Job) -> bytes:
    """What no script ever reads: the payload, and what else differs from the defaults."""
    values = (job.codec, job.timeout, job.max_attempts, job.headers)
    if values == _DEFAULTS:
        return _pack((job.payload,))
    extra: dict[str, Any] = {
        name: value
        for name, value, default in zip(_NAMES, values, _DEFAULTS, strict=True)
        if value != default
    }
    if job.headers:
        extra["headers"] = dict(job.headers)
    return _pack((job.payload, extra))


def payload_of(body: bytes) -> bytes:
    payload: bytes = _unpack(body)[0]
    return payload


def option_of(job: Job) -> bytes:
    """What the scripts must know of a job; jobs that are alike share it."""
    keep = -1 if job.keep is None else job.keep
    max_crashes = -1 if job.max_crashes is None else job.max_crashes
    if is_plain(job):
        return _plain_option(job.queue, job.task, keep, max_crashes)
    values = (
        job.queue,
        job.task or False,
        keep,
        max_crashes,
        job.priority,
        job.rank.hex(),
        _or_false(job.delay),
        _or_false(job.run_at),
        _or_false(job.ttl),
        _or_false(job.expires_at),
        job.lane or False,
        job.key or False,
        job.keep_key,
        job.key_queued,
        job.on_repeat,
        job.digest.hex(),
    )
    return _pack(values)


@lru_cache(maxsize=1024)
def _plain_option(queue: str, task: str | None, keep: float, max_crashes: int) -> bytes:
    return _pack((queue, task or False, keep, max_crashes))


def _or_false(value: float | None) -> float | bool:
    return False if value is None else value


def job_from(id: bytes | str, stored: bytes, state: bytes | None) -> Job:
    """The job of what lies under its two keys."""
    return _job(id, stored, None if state is None else _split(state))


def _job(id: bytes | str, stored: bytes, state: tuple[Mapping[str, Any], bytes] | None) -> Job:
    end = 4 + int.from_bytes(stored[:4], "big")
    head, body = _unpack(stored[4:end]), _unpack(stored[end:])
    queue, _, task = head[1].partition("/")
    more: dict[str, Any] = body[1] if len(body) > 1 else {}
    if len(head) > 5:
        more |= _special(head)
    if state is not None:
        _add_state(more, *state)
    return Job(
        id=id if isinstance(id, str) else id.decode(),
        queue=queue,
        task=task or None,
        payload=body[0],
        created_at=float(head[2]),
        keep=None if head[3] < 0 else head[3],
        max_crashes=None if head[4] < 0 else head[4],
        **more,
    )


def claim_from(id: bytes, stored: bytes, state: bytes) -> Claim:
    """The claim on a job that runs."""
    split = _split(state)
    return Claim(_job(id, stored, split), bytes.fromhex(split[0]["v"]), split[0]["n"])


def _split(state: bytes) -> tuple[Mapping[str, Any], bytes]:
    end = 4 + int.from_bytes(state[:4], "big")
    return _unpack(state[4:end]), state[end:]


def _special(head: Sequence[Any]) -> dict[str, Any]:
    return {
        "priority": head[5],
        "rank": bytes.fromhex(head[6]),
        "run_at": _moment(head[7]),
        "expires_at": _moment(head[8]),
        "lane": head[9] or None,
        "key": head[10] or None,
        "keep_key": head[11],
        "key_queued": head[12],
        "digest": bytes.fromhex(head[13]),
    }


def _moment(value: float | bool | None) -> float | None:
    return None if value is None or value is False else float(value)


def _add_state(more: dict[str, Any], known: Mapping[str, Any], result: bytes) -> None:
    if "t" in known:
        more["run_at"] = _moment(known["t"])
    if known.get("o"):
        more["expires_at"] = None
    if "F" in known:
        more["failure"] = _load_failure(known["F"])
    if "G" in known:
        more["progress"] = _load_progress(known["G"])
    more.update(
        status=STATES[known["st"]],
        attempt=known["a"],
        failures=known.get("f", 0),
        crashes=known.get("c", 0),
        suspect=known.get("u", False),
        worker=known.get("w"),
        started_at=_moment(known.get("b")),
        finished_at=_moment(known.get("e")),
        result=result if known.get("R") else None,
    )
