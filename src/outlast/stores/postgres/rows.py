"""Turns jobs into rows and rows into jobs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.job import DAY, Failure, Job, Progress, Status
from outlast.stores.postgres.schema import CANCELLED, DEAD, DONE, HELD, READY, RUNNING, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "DAMAGE",
    "ENDED",
    "LIVE",
    "LIVE_NAMES",
    "STATES",
    "Opts",
    "dump",
    "job_from",
    "load_opts",
    "opts_of",
    "plus",
    "sequence",
    "shown",
    "texts",
]

LIVE_NAMES = (
    "seq, id, line, state, payload, created_at, opts, attempt, priority, rank, due, key, lane,"
    " expires_at, failures, crashes, suspect, failure, progress, worker, started_at, fence"
)
LIVE = f"{LIVE_NAMES}, NULL::float8 AS finished_at, NULL::bytea AS result"
"""What ``job_from`` reads, from the table of live jobs."""
ENDED = f"{LIVE_NAMES}, finished_at, result"
"""The same from the table of ended ones."""

STATES: dict[Status, tuple[int, ...]] = {
    Status.QUEUED: (WAITING, READY, HELD),
    Status.RUNNING: (RUNNING,),
    Status.DONE: (DONE,),
    Status.DEAD: (DEAD,),
    Status.CANCELLED: (CANCELLED,),
}
_STATUS = {state: status for status, states in STATES.items() for state in states}
_INFINITY = float("inf")
DAMAGE = (ValueError, KeyError, TypeError, msgspec.MsgspecError)
"""What ``job_from`` raises for a row that nobody of us has written so."""
_MOST = 2**31 - 2
_HEADERS = '"headers":'
"""In the options of a job that has some: these are seldom those of another."""


class Opts(Struct, frozen=True, omit_defaults=True):
    """What SQL never asks for, as one text; NULL where nothing differs from the defaults."""

    codec: str = "json"
    headers: dict[str, str] = {}
    max_attempts: int = 1
    max_crashes: int | None = 3
    timeout: float | None = None
    digest: bytes = b""
    keep_key: float = DAY
    keep: float | None = DAY
    key_queued: bool = False


_PLAIN = Opts()
dump: Callable[[Any], bytes] = msgspec.json.Encoder().encode
_load = msgspec.json.Decoder(Opts).decode
_load_failure = msgspec.json.Decoder(Failure).decode
_load_progress = msgspec.json.Decoder(Progress).decode


def opts_of(job: Job) -> str | None:
    """The options of a job as text, or None if nothing is unusual about them."""
    if job.headers or job.key is not None:
        return _text(
            Opts(
                job.codec,
                dict(job.headers),
                job.max_attempts,
                job.max_crashes,
                job.timeout,
                job.digest if job.key is not None else b"",
                job.keep_key,
                job.keep,
                job.key_queued,
            )
        )
    return _usual(job.codec, job.max_attempts, job.max_crashes, job.timeout, job.keep_key, job.keep)


@lru_cache(maxsize=1024)
def _usual(
    codec: str,
    attempts: int,
    crashes: int | None,
    timeout: float | None,
    keep_key: float,
    keep: float | None,
) -> str | None:
    return _text(Opts(codec, {}, attempts, crashes, timeout, b"", keep_key, keep))


def _text(opts: Opts) -> str | None:
    return None if opts == _PLAIN else dump(opts).decode()


@lru_cache(maxsize=1024)
def _loaded(text: str | None) -> Opts:
    return _PLAIN if text is None else _load(text)


def load_opts(text: str | None) -> Opts:
    """What ``opts_of`` wrote, or the usual where that can't be read. Shared: not to be changed.

    One row that was damaged is not to keep others from being recovered, expired or ended.
    """
    try:
        return _loaded(text)
    except DAMAGE:
        return _PLAIN


def plus(count: str, by: str | int) -> str:
    """SQL: a column of counts and so many more. One that is as high as can be stays so: else no
    statement that meets the row could be done for any other."""
    return f"least({count}, {_MOST}) + {by}"


def _bare(text: str | None, name: tuple[str, str | None], state: int) -> Job:
    """What a job has from its options, its line and its state."""
    opts = _loaded(text)
    return Job(
        id="",
        queue=name[0],
        task=name[1],
        codec=opts.codec,
        headers=opts.headers,
        max_attempts=opts.max_attempts,
        max_crashes=opts.max_crashes,
        timeout=opts.timeout,
        digest=opts.digest,
        keep_key=opts.keep_key,
        key_queued=opts.key_queued,
        keep=opts.keep,
        status=_STATUS[state],
    )


_model = lru_cache(maxsize=1024)(_bare)


def job_from(row: Sequence[Any], name: tuple[str, str | None], attempt: int = 0) -> Job:
    """The job of a row, read by ``LIVE`` or ``ENDED``; ``attempt`` is added to what it says.

    Raises one of ``DAMAGE`` for a row that was damaged, or written by hand.
    """
    (
        _, id_, _, state, payload, created_at, text, before, priority, rank, due, key, lane,
        expires_at, failures, crashes, suspect, failure, progress, worker, started_at, _,
        finished_at, result,
    ) = row  # fmt: skip
    if (
        key is lane is expires_at is failure is progress is finished_at is result is None
        and due == _INFINITY
        and not (priority or rank or failures or crashes or suspect)
        and (text is None or _HEADERS not in text)
    ):
        # What most are when they are claimed: few fields are to be set, which takes a third.
        return replace(
            _model(text, name, state),
            id=id_,
            payload=payload,
            attempt=before + attempt,
            created_at=created_at,
            started_at=started_at,
            worker=worker,
        )
    return replace(
        _bare(text, name, state),
        id=id_,
        payload=payload,
        priority=priority,
        rank=rank,
        run_at=None if due == _INFINITY else due,
        expires_at=expires_at,
        attempt=before + attempt,
        failures=failures,
        crashes=crashes,
        suspect=suspect,
        key=key,
        lane=lane,
        created_at=created_at,
        started_at=started_at,
        finished_at=finished_at,
        failure=None if failure is None else _load_failure(failure),
        result=result,
        progress=None if progress is None else _load_progress(progress),
        worker=worker,
    )


def shown(row: Sequence[Any], name: tuple[str, str | None]) -> Job:
    """The same for those who look: one damaged row is not to hide all others from them."""
    try:
        return job_from(row, name)
    except DAMAGE as error:
        why = Failure(kind="damaged", message=f"its row can't be read ({error})")
        status = _STATUS[row[3]]
        return Job(
            id=row[1], queue=name[0], task=name[1], payload=row[4], status=status, failure=why
        )


def sequence(receipt: bytes) -> int:
    """The row that a receipt of ours points at."""
    return int.from_bytes(receipt[16:], "big", signed=True)


def texts(wanted: Sequence[str]) -> list[str]:
    """Without those that can't be stored: nothing is called that."""
    return sorted(filter(_is_text, set(wanted)))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text
