"""Turns jobs into rows and rows into jobs."""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from outlast.job import Failure, Job, Progress, Status
from outlast.stores.sqlite.schema import CANCELLED, DEAD, DONE, HELD, RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import apsw

__all__ = [
    "DAMAGE",
    "HEAD",
    "TAIL",
    "USUAL",
    "JobMaker",
    "alike",
    "crc",
    "crcs",
    "dump",
    "fetch",
    "job_from",
    "listed",
    "load_failure",
    "load_opts",
    "multiplied",
    "option",
    "opts_of",
    "parse_columns",
    "status_of",
    "storable",
]

HEAD = "seq, id, line, {payload}, crc, created_at, opts, attempt"
TAIL = (
    "state, priority, {rank}, nullif(due, 9e999), key, lane, expires_at, failures, crashes,"
    " suspect, failure, progress"
)
"""What a job is read from, in the order of ``job_from``; some columns as the reader likes."""
USUAL = (
    "priority = 0 AND rank = x'' AND due = 9e999 AND key IS NULL AND lane IS NULL AND"
    " expires_at IS NULL AND failures + crashes + suspect = 0 AND failure IS NULL AND"
    " progress IS NULL"
)
"""Whether the tail holds nothing but what a new job has anyway."""

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
_load = msgspec.json.Decoder(dict[str, Any]).decode
_load_failure = msgspec.json.Decoder(Failure).decode
_load_progress = msgspec.json.Decoder(Progress).decode
parse_columns = msgspec.json.Decoder(list[list[Any]]).decode


def listed(texts: Sequence[str]) -> str:
    """Texts for ``json_each``, without those that can't be stored: nothing is called that."""
    return dump([text for text in texts if storable(text)]).decode()


def storable(text: str) -> bool:
    """Whether it is text at all: half a character is none, and SQLite would raise."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fetch(connection: apsw.Connection, text: str, *values: Any) -> list[Any]:
    """All rows of one statement; in a job's texts, marks stand for what can't be read any more."""
    try:
        return connection.execute(text, values).fetchall()
    except UnicodeDecodeError:
        connection.create_scalar_function("legible", _legible, 1)
        columns, rest = text.split(" FROM ", 1)
        columns = _TEXTS.sub(r"legible(CAST(\1 AS BLOB))", columns)
        return connection.execute(f"{columns} FROM {rest}", values).fetchall()


_TEXTS = re.compile(r"\b(id|opts|key|lane|failure|progress|worker)\b")


def _legible(*data: Any) -> str | None:
    return None if data[0] is None else str(data[0], errors="replace")


def crc(line: int, identifier: str, payload: bytes, opts: str | None) -> int:
    """A checksum over the payload and what it belongs to; SQLite sees no bit that flips in a row.

    The lower half is over line, id and payload, and says whether two jobs are the same; the upper
    one is over ``opts``.
    """
    half = zlib.crc32(payload, zlib.crc32(identifier.encode(), line & 0xFFFFFFFF))
    return half if opts is None else _crc_of_opts(opts) | half


def crcs(line: int, ids: Sequence[str], payloads: Sequence[bytes], opts: str | None) -> list[int]:
    """``crc`` for many jobs."""
    halves = map(zlib.crc32, map(str.encode, ids), repeat(line & 0xFFFFFFFF))
    found = map(zlib.crc32, payloads, halves)
    return list(found if opts is None else map(_crc_of_opts(opts).__or__, found))


@lru_cache(maxsize=1024)
def _crc_of_opts(opts: str) -> int:
    # One bit less, since SQLite's integers have a sign.
    return zlib.crc32(opts.encode()) >> 1 << 32


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
        if job.key_queued:
            found["key_queued"] = True
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
    found = _load(text)
    if "digest" in found:
        found["digest"] = bytes.fromhex(found["digest"])
    return found


def option(opts: str | None, name: str, default: Any) -> Any:
    """One of a job's options, for those who only clear up: what is damaged is as by default."""
    if opts is None:
        return default
    try:
        found = load_opts(opts).get(name, default)
    except DAMAGE:
        return default
    return found if found is None or isinstance(found, int | float | bytes) else default


def load_failure(text: str | None) -> Failure | None:
    return None if text is None else _load_failure(text)


DAMAGE = (ValueError, KeyError, TypeError, msgspec.MsgspecError)
"""What ``job_from`` raises for a row whose bits have flipped."""


def status_of(state: int) -> Status:
    """What people call a state."""
    return _STATUS.get(state, Status.QUEUED)


class JobMaker:
    """Makes the jobs of many rows, whose lines have these names; all of them get ``more`` fields.

    Usual rows of one line with the same ``opts`` differ in little: made from each other, they take
    half the time.
    """

    __slots__ = ("_more", "_names", "_usual")

    def __init__(self, names: Mapping[int, tuple[str, str | None]], **more: Any) -> None:
        self._names = names
        self._more = more
        self._usual: dict[tuple[int, str | None], Job] = {}

    def job(self, head: Sequence[Any], tail: Sequence[Any] | None) -> Job:
        """As by ``job_from``."""
        line, opts = head[2], head[6]
        like = self._usual.get((line, opts)) if tail is None else None
        if like is None:
            job = job_from(head, tail, self._names[line], **self._more)
            if tail is None:
                self._usual[line, opts] = job
            return job
        payload = head[3]
        if payload.__class__ is str:
            payload = payload.encode() if like.codec == _DEFAULT.codec else bytes.fromhex(payload)
        return replace(like, id=head[1], payload=payload, created_at=head[5], attempt=head[7])


def alike(
    columns: Sequence[list[Any]], names: Mapping[int, tuple[str, str | None]], **more: Any
) -> list[Job] | None:
    """The jobs of usual rows of one line with the same ``opts``: nearly all work is done in C.

    None if they differ in more, or one may be damaged: then each has to be looked at.
    """
    _, ids, lines, payloads, marks, created, opts, attempts, tails = columns
    number = len(ids)
    if not number or min(lines.count(lines[0]), opts.count(opts[0]), tails.count(None)) < number:
        return None
    try:
        first = job_from([column[0] for column in columns], None, names[lines[0]], **more)
        plain = first.codec == _DEFAULT.codec
        data = list(map(str.encode if plain else bytes.fromhex, payloads))
        if first.key_queued or crcs(lines[0], ids, data, opts[0]) != marks:
            return None
    except (*DAMAGE, AttributeError):
        return None
    return multiplied(first, ids, data, created, attempts)


def multiplied(
    first: Job,
    ids: Iterable[str],
    payloads: Iterable[bytes],
    created: Iterable[float],
    attempts: Iterable[int],
) -> list[Job]:
    """Jobs that differ from the first in nothing else."""
    return [
        replace(first, id=id_, payload=payload, created_at=at, attempt=attempt)
        for id_, payload, at, attempt in zip(ids, payloads, created, attempts, strict=False)
    ]


def job_from(
    head: Sequence[Any], tail: Sequence[Any] | None, name: tuple[str, str | None], **more: Any
) -> Job:
    """The job of a row, read by ``HEAD`` and ``TAIL``; without a tail it is a usual one.

    ``more`` are further fields. Raises one of ``DAMAGE`` for a damaged row.
    """
    payload, opts = head[3], head[6]
    if opts is not None:
        extra = load_opts(opts)
        more.update(extra)
        if payload.__class__ is str and "codec" in extra:
            payload = bytes.fromhex(payload)
    if payload.__class__ is str:
        payload = payload.encode()
    if tail is not None:
        (state, priority, rank, due, key, lane, expires, failures, crashes, suspect, *last) = tail
        failure, progress = last
        if state > HELD:
            more.setdefault("status", _STATUS[state])
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
        id=head[1],
        queue=name[0],
        task=name[1],
        payload=payload,
        created_at=head[5],
        attempt=head[7],
        **more,
    )
