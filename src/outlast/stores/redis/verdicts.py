"""Settling: verdicts as arguments of their script, and which of them were not held any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.job import Lost
from outlast.stores.redis.op import listed_jobs
from outlast.stores.redis.rows import dump

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job, Verdict
    from outlast.stores.redis.op import Arg

__all__ = ["lost_from", "settle_args"]


def settle_args(verdicts: Sequence[Verdict], again: bool) -> list[Arg]:
    args: list[Arg] = []
    kinds: dict[tuple[str, str | None, float | None], int] = {}
    followers: list[Job] = []
    after: list[int] = []
    for n, verdict in enumerate(verdicts, 1):
        marks = "s" if verdict.started else ""
        failure = verdict.failure
        text: bytes = b""
        job = verdict.claim.job
        kind = 0
        if verdict.kind == "done":
            if job.lane is None and job.key is None and job.keep != 0 and verdict.started:
                kind = kinds.setdefault((job.queue, job.task, job.keep), len(kinds) + 1)
            if verdict.result is not None:
                marks += "r"
                text = verdict.result
        elif failure is not None:
            text = dump(failure)
            if failure.kind == "crash":
                marks += "c"
        elif verdict.event is not None:
            text = verdict.event.encode()
        what = "back" if verdict.kind == "give_back" else verdict.kind
        args += (
            job.id, verdict.claim.receipt.hex(), what, marks,
            kind if verdict.kind == "done" else repr(verdict.delay), text,
        )  # fmt: skip
        followers += verdict.then
        after += [n] * len(verdict.then)
    head: list[Arg] = [int(again), len(kinds)]
    for queue, task, keep in kinds:
        line = queue if task is None else f"{queue}/{task}"
        head += (line, "-1" if keep is None else repr(float(keep)))
    return [*head, len(verdicts), *args, *listed_jobs(followers, after)]


def lost_from(raw: Sequence[int], verdicts: Sequence[Verdict]) -> list[Lost]:
    return [Lost(verdicts[n - 1].claim, "lost") for n in raw]
