"""Jobs as the scripts are given them, and as they give them back."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
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

# As base.lua has them, as far as they are of fixed size.
_HEADER = Struct(">IddddH")
_STATE = Struct(">cBIIIddddB")
_fence = Struct(">30xd").unpack_from

# The same in the pieces that the usual claim is made of: without anything more behind the line, a
# payload alone in its body, and a state that ends with neither failure nor progress.
_SIZES = Struct(">I8xd16xH").unpack_from
_KIND_OF, _KIND_OF_SIZE = Struct(">ddH").unpack_from, 18
_BEGUN = Struct(">2xIIId8xdd").unpack_from
_KIND, _PLAIN, _ALONE, _NOTHING = 20, 42, 0x91, bytes(8)

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
    return _job(id, stored, {} if state is None else _state(state))


def _job(id: bytes | str, stored: bytes, state: Mapping[str, Any]) -> Job:
    size, _, created, keep, max_crashes, long = _HEADER.unpack_from(stored)
    at = _HEADER.size + long
    queue, _, task = stored[_HEADER.size : at].decode().partition("/")
    body = _unpack(stored[size:])
    known: dict[str, Any] = body[1] if len(body) > 1 else {}
    if size > at + 4:
        known |= _special(_unpack(stored[at + 4 : size]))
    known |= state
    return Job(
        id=id if isinstance(id, str) else id.decode(),
        queue=queue,
        task=task or None,
        payload=body[0],
        created_at=created,
        keep=None if keep < 0 else keep,
        max_crashes=None if max_crashes < 0 else int(max_crashes),
        **known,
    )


def claim_from(id: bytes, stored: bytes, state: bytes) -> Claim:
    """The claim on a job that runs."""
    at = _STATE.size + state[_STATE.size - 1]
    end = at + 1 + state[at]
    receipt = bytes.fromhex(state[at + 1 : end].decode())
    size, created, long = _SIZES(stored)
    if size != _PLAIN + long or stored[size] != _ALONE or state[1] or not state.endswith(_NOTHING):
        return Claim(_job(id, stored, _state(state)), receipt, int(_fence(state)[0]))
    # What is usual takes half of that: nothing but a payload, neither failures nor flags.
    attempt, failures, crashes, began, fence, due = _BEGUN(state)
    queue, task, keep, max_crashes = _kind(stored[_KIND:size])
    job = Job(
        id=id.decode(), queue=queue, task=task, payload=_unpack(stored[size:])[0],
        created_at=created, keep=keep, max_crashes=max_crashes, status=Status.RUNNING,
        attempt=attempt, failures=failures, crashes=crashes, started_at=began,
        run_at=due if due >= 0 else None, worker=_name(state[end + 2 : -len(_NOTHING)]),
    )  # fmt: skip
    return Claim(job, receipt, int(fence))


@lru_cache(maxsize=1024)
def _kind(text: bytes) -> tuple[str, str | None, float | None, int | None]:
    """What jobs that are alike share of their plain headers."""
    keep, max_crashes, long = _KIND_OF(text)
    queue, _, task = text[_KIND_OF_SIZE : _KIND_OF_SIZE + long].decode().partition("/")
    return (
        queue, task or None, None if keep < 0 else keep,
        None if max_crashes < 0 else int(max_crashes),
    )  # fmt: skip


_name = lru_cache(maxsize=64)(bytes.decode)


def _special(more: Sequence[Any]) -> dict[str, Any]:
    return {
        "priority": more[0],
        "rank": bytes.fromhex(more[1]),
        "run_at": _moment(more[2]),
        "expires_at": _moment(more[3]),
        "lane": more[4] or None,
        "key": more[5] or None,
        "keep_key": more[6],
        "key_queued": more[7],
        "digest": bytes.fromhex(more[8]),
    }


def _moment(value: float | bool | None) -> float | None:
    return None if value is None or value is False else float(value)


def _state(text: bytes) -> dict[str, Any]:
    """The fields of a job that its state has."""
    letter, flags, attempt, failures, crashes, began, ended, _, due, size = _STATE.unpack_from(text)
    at = _STATE.size + size
    at += 1 + text[at]
    worker, at = _text(text, at, 2)
    failure, at = _text(text, at, 4)
    progress, at = _text(text, at, 4)
    known: dict[str, Any] = {
        "status": STATES[letter.decode()],
        "attempt": attempt,
        "failures": failures,
        "crashes": crashes,
        "suspect": bool(flags & 1),
        "worker": worker.decode() if worker else None,
        "started_at": began if began >= 0 else None,
        "finished_at": ended if ended >= 0 else None,
        "result": text[at:] if flags & 16 else None,
    }
    if due != -1:
        known["run_at"] = due if due >= 0 else None
    if flags & 4:
        known["expires_at"] = None
    if failure:
        known["failure"] = _load_failure(failure)
    if progress:
        known["progress"] = _load_progress(progress)
    return known


def _text(text: bytes, at: int, width: int) -> tuple[bytes, int]:
    """What stands there behind its length; and where it ends."""
    begin = at + width
    end = begin + int.from_bytes(text[at:begin], "big")
    return text[begin:end], end
