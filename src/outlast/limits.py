"""What a job may look like: the one check that the app, the queues and every store share."""

from __future__ import annotations

import re
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from outlast.errors import ConfigurationError, Unsupported
from outlast.job import Alike, OnRepeat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job

__all__ = [
    "MAX_ID",
    "MAX_KEY",
    "MAX_PAYLOAD",
    "MAX_PRIORITY",
    "REPEATS",
    "check_count",
    "check_job",
    "check_jobs",
    "check_name",
    "check_timeout",
    "is_plain",
    "shown",
]

MAX_ID = 128
MAX_PAYLOAD = 1 << 28
"""Bytes, to which an app's own limit may be raised; stores have theirs from 512 MB on."""
MAX_KEY = 512
MAX_PRIORITY = 100
REPEATS = frozenset(get_args(OnRepeat))

_PRINTABLE = bytes(range(0x20, 0x7F))
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def check_name(name: object, what: str = "name") -> None:
    """Refuse a queue, task or namespace name that some store could not carry.

    Raises ``ConfigurationError``.
    """
    if not (isinstance(name, str) and _plain(name)):
        raise ConfigurationError(
            f"{what} {shown(name)}: use 1 to 128 of the letters A-Z and a-z, digits, and _ . : -"
        )


def check_timeout(what: str, timeout: float | None, longest: float | None) -> None:
    """Refuse what may run for longer than the store it goes to lets it. Raises ``Unsupported``."""
    if longest is not None and timeout is not None and timeout > longest:
        raise Unsupported(
            f"{what} may run for {timeout:g} s (its timeout), and this broker gives a job to"
            f" somebody else soon after {longest:g} s. A run that long needs records in"
            " another store: give records=, lower the timeout, or raise the broker's"
            " consumer_timeout and say so with ?consumer_timeout= in the URL"
        )


@lru_cache(maxsize=4096)
def _plain(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_count(name: str, value: int, most: int | None = None) -> int:
    """A setting that counts something. Raises ``ConfigurationError`` naming it."""
    if type(value) is not int or value < 1 or (most is not None and value > most):
        to = "up" if most is None else f"to {most}"
        raise ConfigurationError(f"{name}={shown(value)}: use a whole number from 1 {to}")
    return value


def check_job(job: Job) -> None:
    """Refuse a job that no store may take: bad names, keys, priorities or durations.

    Raises ``ConfigurationError`` naming the field. It is called once for each job that is added,
    so the usual job passes on one expression, and only a doubtful one is looked at field by field.
    """
    if not (
        job.queue.__class__ is str
        and _plain(job.queue)
        and (job.task is None or (job.task.__class__ is str and _plain(job.task)))
        and job.delay is job.ttl is job.run_at is job.expires_at is None
        and job.lane is None
        and (
            job.key is None
            or (0 < len(job.key) <= MAX_KEY and _clean(job.key) and job.on_repeat in REPEATS)
        )
        and (job.timeout is None or 0.0 < job.timeout < inf)
        and job.priority.__class__ is int
        and -MAX_PRIORITY <= job.priority <= MAX_PRIORITY
        and 0 < len(job.id) <= MAX_ID
        and _clean(job.id)
        and 0.0 <= job.keep_key < inf
        and (job.keep is None or 0.0 <= job.keep < inf)
        and job.max_attempts >= 1
        and (job.max_crashes is None or job.max_crashes >= 1)
    ):
        _check_fields(job)


_model: Job | None = None


def check_jobs(jobs: Sequence[Job]) -> Job | None:
    """``check_job`` for a batch; the job that all of them are like, or None if they differ.

    It has no id and no payload, and is the same object as long as jobs like it keep coming. Calls
    of one task nearly always are alike, and are then looked at once.
    """
    global _model
    if type(jobs) is Alike:
        return _check_alike(jobs)
    model, differ = _model, not jobs
    for job in jobs:
        bare = replace(job, id="", payload=b"")
        if bare != model:
            check_job(job)
            differ = differ or job is not jobs[0]
            model = bare
        else:
            _check_id(job.id)
    _model = model
    return None if differ else model


_template: Job | None = None


def _check_alike(jobs: Alike) -> Job | None:
    global _template
    model, ids = jobs.model, jobs.ids
    if not ids:
        return None
    if model is not _template:
        check_job(model)
        _template = model
    if len(ids) == 1:
        _check_id(ids[0])
        return model
    lengths = list(map(len, ids))
    # Of a long text, this is told in a third of the time that ``_clean`` takes.
    odd = "".join(ids).encode("utf-8", "surrogatepass").translate(None, _PRINTABLE)
    if odd or not (min(lengths) > 0 and max(lengths) <= MAX_ID):
        for id_ in ids:
            _check_text(id_, "id", MAX_ID)
    return model


def _check_id(id_: str) -> None:
    if not (0 < len(id_) <= MAX_ID and id_.isascii() and id_.isprintable()):
        _check_text(id_, "id", MAX_ID)


def is_plain(job: Job) -> bool:
    """Whether a job is due at once, in the order of adding, and nothing else is asked of it."""
    return (
        job.priority == 0
        and job.delay is job.run_at is job.ttl is job.expires_at is None
        and job.key is job.lane is None
        and not job.rank
    )


def _clean(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _check_fields(job: Job) -> None:
    check_name(job.queue, "queue")
    if job.task is not None:
        check_name(job.task, "task")
    _check_text(job.id, "id", MAX_ID)
    for what, text in (("key", job.key), ("lane", job.lane)):
        if text is not None:
            _check_text(text, what, MAX_KEY)
    if job.on_repeat not in REPEATS:
        raise ConfigurationError(
            f"on_repeat {job.on_repeat!r}: use one of {', '.join(sorted(REPEATS))}"
        )
    if type(job.priority) is not int or not -MAX_PRIORITY <= job.priority <= MAX_PRIORITY:
        raise ConfigurationError(
            f"priority {shown(job.priority)}: use a whole number"
            f" from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        )
    for what, count in (("max_attempts", job.max_attempts), ("max_crashes", job.max_crashes)):
        if count is not None and count < 1:
            raise ConfigurationError(f"{what} {count!r}: use at least 1")
    _check_times(job)


def _check_times(job: Job) -> None:
    for what in ("delay", "ttl", "keep", "keep_key"):
        seconds = getattr(job, what)
        if seconds is not None and not 0.0 <= seconds < inf:
            raise ConfigurationError(f"{what} {seconds!r}: use a number of seconds from 0 up")
    if job.timeout is not None and not 0.0 < job.timeout < inf:
        raise ConfigurationError(f"timeout {job.timeout!r}: use a number of seconds above 0")
    for what in ("run_at", "expires_at"):
        moment = getattr(job, what)
        if moment is not None and not -inf < moment < inf:
            raise ConfigurationError(f"{what} {moment!r}: use a moment in seconds since 1970")


def _check_text(text: object, what: str, limit: int) -> None:
    if not (isinstance(text, str) and 0 < len(text) <= limit):
        raise ConfigurationError(f"{what} {shown(text)}: use a text of 1 to {limit} characters")
    if "\0" in text:
        raise ConfigurationError(f"{what} {shown(text)}: NUL can't be stored everywhere")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} {shown(text)}: holds half a character") from None


def shown(value: object) -> str:
    """A value for a message: in ASCII, and not endless."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
