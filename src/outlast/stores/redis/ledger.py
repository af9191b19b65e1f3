"""Looking at jobs and steering them by hand: what `Ledger` promises, as calls of the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import JobNotFound, KeyConflict
from outlast.job import Depth, Job, Status
from outlast.store import Line
from outlast.stores.redis.op import Op, Place
from outlast.stores.redis.rows import STATES, job_from

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.store import Cancelled
    from outlast.stores.redis.op import Arg

__all__ = ["Lines", "Scan", "cancel", "depth", "ended", "jobs", "namespaces", "pause", "revive"]

_LETTERS = {status: letter for letter, status in STATES.items()}
PAGE = 500


def depth(queue: str) -> Op[Depth]:
    def parse(raw: Sequence[Any]) -> Depth:
        return _depth([sum(column) for column in zip(*raw, strict=True)]) if raw else Depth()

    return Op("look", ["depth", queue], parse)


def namespaces() -> Op[Sequence[str]]:
    def parse(raw: Sequence[bytes]) -> Sequence[str]:
        return sorted(name.decode() for name in raw)

    return Op("look", ["namespaces"], parse)


class Lines:
    """All lines, read in pieces: with a queue for each customer they are many thousands."""

    def __init__(self, run: Callable[[], str]) -> None:
        self.found: dict[bytes, Line] = {}
        self.goes_on = True
        self._place = Place(run)

    def ask(self) -> Op[None]:
        return Op("look", self._args, self._read)

    def _args(self, _: bool) -> Sequence[Arg]:
        if self._place.look():
            self.found.clear()
        return ["lines", self._place.text]

    def _read(self, raw: Sequence[Any]) -> None:
        self._place.text = raw[0].decode()
        self.goes_on = self._place.text != "0"
        for row in raw[1:]:
            queue, _, task = row[6].decode().partition("/")
            self.found[row[6]] = Line(
                queue=queue,
                task=task or None,
                depth=_depth(row),
                paused=bool(row[7]),
                oldest=float(row[8]) if row[8] else None,
            )


def _depth(counts: Sequence[int]) -> Depth:
    queued, running, done, dead, cancelled, delayed = counts[:6]
    return Depth(
        ready=queued - delayed,
        delayed=delayed,
        running=running,
        done=done,
        dead=dead,
        cancelled=cancelled,
    )


def jobs(ids: Sequence[str]) -> Op[Sequence[Job | None]]:
    def parse(raw: Sequence[Any]) -> Sequence[Job | None]:
        return [
            None if raw[2 * n] is None else job_from(id_, raw[2 * n], raw[2 * n + 1])
            for n, id_ in enumerate(ids)
        ]

    return Op("look", ["jobs", *_named(ids)], parse)


def ended(ids: Sequence[str], *, listen: bool) -> Op[Sequence[Job]]:
    """Those that have ended. With ``listen`` the ends of the others are going to be told."""

    def parse(raw: Sequence[Any]) -> Sequence[Job]:
        if raw and isinstance(raw[0], bytes):
            missing = raw[0].decode(errors="replace")
            raise JobNotFound(f"no job {missing} is stored: it never was, or it was deleted")
        return [job_from(*row) for row in raw]

    return Op("look", ["ends", int(listen), *_named(ids)], parse)


def cancel(ids: Sequence[str]) -> Op[Sequence[Cancelled]]:
    def parse(raw: Sequence[bytes]) -> Sequence[Any]:
        return [word.decode() for word in raw]

    return Op("steer", ["cancel", *_named(ids)], parse, repeatable=False)


def revive(ids: Sequence[str]) -> Op[Sequence[bool]]:
    def parse(raw: Sequence[Any]) -> Sequence[bool]:
        if raw[0] == b"!":
            id_, key, holder = (each.decode() for each in raw[1:])
            raise KeyConflict(
                f"job {id_} can't be revived: its key {key!r} belongs to job {holder}"
            )
        return [bool(each) for each in raw]

    return Op("steer", ["revive", *_named(ids)], parse, repeatable=False)


def pause(queue: str, paused: bool) -> Op[None]:
    return Op("steer", ["pause", queue, int(paused)])


def _named(texts: Sequence[str]) -> list[bytes]:
    """Half a character names nothing that is stored, and is looked for in vain."""
    return [text.encode("utf-8", "surrogatepass") for text in texts]


class Scan:
    """Looks through all jobs, newest first, in pieces; and knows where it is."""

    def __init__(
        self,
        status: Sequence[Status],
        queue: str | None = None,
        task: str | None = None,
        key: str | None = None,
        since: float | None = None,
        until: float | None = None,
        after: str | None = None,
    ) -> None:
        self.found: list[Job] = []
        self.many = 0
        self.goes_on = True
        self._queue = queue or ""
        self._states = "".join(_LETTERS[each] for each in status)
        self._status = status
        self._from = "+" if after is None else f"@{after}"
        self._below: str | None = None
        self._tests: list[Arg] = [
            *_named((queue or "", task or "", key or "")),
            *("" if moment is None else repr(float(moment)) for moment in (since, until)),
        ]

    def find(self, limit: int) -> Op[None]:
        if self._below is not None:
            limit = PAGE  # those that are not below it are no finds
        place = _named([self._from])[0]
        args: list[Arg] = ["find", place, min(limit, PAGE), self._states, *self._tests]
        return Op("scan", args, self._read)

    def purge(self, *, dry_run: bool) -> Op[None]:
        states = self._states.replace("r", "") or "-"
        what = "count" if dry_run else "purge"
        return Op("scan", [what, self._from, PAGE, states, *self._tests], self._read)

    def _read(self, raw: Sequence[Any]) -> None:
        if raw[0] == b"unknown":
            raise JobNotFound(f"no job was ever added to a queue {self._queue!r}")
        if raw[0] == b"gone":
            # Its page is gone meanwhile; ids of ours are ordered by time, so the next page isn't.
            self._below, self._from = self._from[1:], "+"
            return
        self._from = raw[0].decode()
        self.goes_on = bool(self._from)
        self.many += raw[1]
        for n in range(2, len(raw), 3):
            job = job_from(raw[n], raw[n + 1], raw[n + 2])
            if self._below is None or job.id < self._below:
                self.found.append(job)
