"""Turns jobs into rows and rows into jobs."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.job import Failure, Job, Progress, Status
from outlast.stores.sqlite.schema import CANCELLED, DEAD, DONE, RUNNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import apsw

__all__ = ["COLUMNS", "crc", "dump", "fetch", "job_from", "load_failure", "opts_of", "parse_rows"]

COLUMNS = (
    "seq, id, line, {payload}, crc, created_at, opts, state, attempt, priority, {rank},"
    " nullif(due, 9e999), key, lane, expires_at, failures, crashes, suspect, failure, progress"
)
"""What a job is read from, in the order of ``job_from``; some columns as the reader likes."""

_STATUS = {
    RUNNING: Status.RUNNING,
    DONE: Status.DONE,
    DEAD: Status.DEAD,
    CANCELLED: Status.CANCELLED,
}
_DEFAULT = Job(id="")
_PLAIN = (
    _DEFAULT.codec,
    _DEFAULT.max_attempts,
    _DEFAULT.max_crashes,
    _DEFAULT.timeout,
    _DEFAULT.keep_key,
    _DEFAULT.keep,
)
_NAMES = ("codec", "max_attempts", "max_crashes", "timeout", "keep_key", "keep")

dump = msgspec.json.Encoder().encode
_load = msgspec.json.Decoder().decode
_load_failure = msgspec.json.Decoder(Failure).decode
_load_progress = msgspec.json.Decoder(Progress).decode
parse_rows = msgspec.json.Decoder(list[list[Any]]).decode


def fetch(connection: apsw.Connection, text: str, *values: Any) -> list[Any]:
    """All rows of one statement."""
    return connection.execute(text, values).fetchall()


def crc(identifier: str, payload: bytes) -> int:
    """A checksum over the payload and the id it belongs to."""
    return zlib.crc32(payload, zlib.crc32(identifier.encode()))


def opts_of(job: Job) -> str | None:
    """What SQL never asks for and differs from the defaults, as one text; None if nothing does."""
    values = (
        job.codec,
        job.max_attempts,
        job.max_crashes,
        job.timeout,
        job.keep_key,
        job.keep,
    )
    if not job.headers and job.key is None:
        return None if values == _PLAIN else _opts(values)
    found = _differing(values)
    if job.headers:
        found["headers"] = dict(job.headers)
    if job.key is not None:
        found["digest"] = job.digest.hex()
    return dump(found).decode()


@lru_cache(maxsize=1024)
def _opts(values: tuple[Any, ...]) -> str:
    return dump(_differing(values)).decode()


def _differing(values: tuple[Any, ...]) -> dict[str, Any]:
    pairs = zip(_NAMES, values, _PLAIN, strict=True)
    return {name: value for name, value, plain in pairs if value != plain}


@lru_cache(maxsize=1024)
def load_opts(text: str) -> Mapping[str, Any]:
    """The arguments of ``Job`` that ``opts_of`` put away. Shared: not to be changed."""
    found: dict[str, Any] = _load(text)
    if "digest" in found:
        found["digest"] = bytes.fromhex(found["digest"])
    return found


def load_failure(text: str | None) -> Failure | None:
    return None if text is None else _load_failure(text)


def job_from(
    row: Sequence[Any],
    names: Mapping[int, tuple[str, str | None]],
    claimed: tuple[float, str] | None = None,
    **more: Any,
) -> Job:
    """The job of a row read by ``COLUMNS``; ``claimed`` is (now, worker) when it is claimed.

    Raises what damaged rows raise: ``ValueError``, ``KeyError``, ``TypeError``, msgspec's errors.
    """
    (_, identifier, line, payload, _, created, opts, state, attempt, *rest) = row
    queue, task = names[line]
    if payload.__class__ is str:
        payload = payload.encode()
    extra = load_opts(opts) if opts else {}
    if claimed is not None:
        more = {"status": Status.RUNNING, "started_at": claimed[0], "worker": claimed[1]}
    elif state > 2:
        more["status"] = _STATUS[state]
    if rest != _USUAL:
        (priority, rank, due, key, lane, expires, failures, crashes, suspect, failure, progress) = (
            rest
        )
        more.update(
            priority=priority,
            rank=bytes.fromhex(rank) if rank.__class__ is str else rank,
            run_at=due,
            key=key,
            lane=lane,
            expires_at=expires,
            failures=failures,
            crashes=crashes,
            suspect=bool(suspect),
            failure=load_failure(failure),
            progress=_load_progress(progress) if progress else None,
        )
    return Job(
        id=identifier,
        queue=queue,
        task=task,
        payload=payload,
        created_at=created,
        attempt=attempt,
        **extra,
        **more,
    )


_USUAL = [0, "", None, None, None, None, 0, 0, 0, None, None]
assert WAITING < RUNNING
