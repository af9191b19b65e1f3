"""The commands that only look: status, jobs, show and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from outlast.cli.moments import age, ago, iso, span
from outlast.cli.suggest import did_you_mean
from outlast.cli.target import Target, known_queue, store_options
from outlast.cli.views import failure_line, is_alive, job_view, line_view, value_text, worker_view
from outlast.clock import SystemClock
from outlast.errors import JobNotFound
from outlast.job import Status
from outlast.limits import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job
    from outlast.store import Ledger, Line, Store, WorkerInfo

__all__ = ["jobs", "show", "status", "workers"]

COUNTS = ("ready", "delayed", "running", "done", "dead", "cancelled")
LOOKED_THROUGH = 500
"""How many of the newest ids are compared with one that was not found."""

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


@click.command()
@click.option("--queue", "-q", metavar="QUEUE", help="This queue only.")
@as_json
@store_options
def status(target: Target, queue: str | None, as_json: bool) -> None:
    """Count the jobs of every queue and task."""

    async def look() -> tuple[Store, Sequence[Line], Sequence[WorkerInfo]]:
        async with target.reading() as (store, ledger):
            lines = await known_queue(ledger, queue) if queue else await ledger.lines()
            return store, lines, await ledger.workers()

    now = SystemClock().now()
    store, lines, seen = target.run(look)
    alive = [worker for worker in seen if is_alive(worker, now)]
    unknown = _unknown(lines, alive)
    if as_json:
        target.screen.json(
            {
                "store": store.url,
                "durability": str(store.durability),
                "lines": [line_view(line) for line in lines],
                "workers": len(alive),
                "unknown_tasks": unknown,
            }
        )
        return
    target.screen.line(f"{store.url} (accepted jobs survive: {_survives(store)})")
    if not lines:
        target.screen.line("No job was ever stored here.")
        return
    _lines_table(target, lines)
    target.screen.line(f"{len(alive)} worker{'' if len(alive) == 1 else 's'}")
    for task, count in unknown.items():
        target.screen.line(f"{count} queued of task {task}, which no running worker knows")


@click.command()
@click.option(
    "--state", "-s", "states", multiple=True, type=click.Choice([str(each) for each in Status]),
    help="Jobs in this state; may be repeated.",
)  # fmt: skip
@click.option("--queue", "-q", metavar="QUEUE", help="Jobs of this queue.")
@click.option("--task", "-t", metavar="TASK", help="Jobs of this task.")
@click.option("--key", metavar="KEY", help="Jobs with this idempotency key.")
@click.option("--older", type=age, metavar="AGE", help="Stored longer ago than this: 90, 15m, 2d.")
@click.option("--newer", type=age, metavar="AGE", help="Stored more recently than this.")
@click.option("--limit", "-n", type=click.IntRange(1, 10000), default=50, show_default=True)
@click.option("--after", metavar="ID", help="Go on after this job: the last of the page before.")
@as_json
@store_options
def jobs(
    target: Target,
    states: tuple[str, ...],
    queue: str | None,
    task: str | None,
    key: str | None,
    older: float | None,
    newer: float | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    now = SystemClock().now()

    async def look() -> Sequence[Job]:
        async with target.reading() as (_, ledger):
            await _check_names(ledger, queue, task)
            await _check_after(ledger, after)
            return await ledger.find(
                status=[Status(state) for state in states],
                queue=queue,
                task=task,
                key=key,
                since=None if newer is None else now - newer,
                until=None if older is None else now - older,
                after=after,
                limit=limit + 1,
            )

    found = target.run(look)
    page = found[:limit]
    more = page[-1].id if len(found) > limit else None
    if as_json:
        target.screen.json({"jobs": [job_view(job) for job in page], "next": more})
        return
    if not page:
        target.screen.note("No job fits.")
        return
    target.screen.table(
        ("id", "state", "queue", "task", "attempt", "stored", "what"),
        [
            (job.id, str(job.status), job.queue, job.task or "", str(job.attempt),
             ago(job.created_at, now), _what(job, now))
            for job in page
        ],
        numbers=("attempt",),
    )  # fmt: skip
    if more:
        target.screen.note(f"More: --after {more}")


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@as_json
@store_options
def show(target: Target, ids: tuple[str, ...], as_json: bool) -> None:
    """Show all there is to know of a job.

    With --json: an object for one id, a list for several.
    """

    async def look() -> list[Job]:
        async with target.reading() as (_, ledger):
            found = await ledger.get(ids)
            if None in found:
                raise JobNotFound(await missing(ledger, ids[list(found).index(None)]))
            return [job for job in found if job is not None]

    found = target.run(look)
    if as_json:
        views = [job_view(job) for job in found]
        target.screen.json(views[0] if len(views) == 1 else views)
        return
    for number, job in enumerate(found):
        if number:
            target.screen.line()
        _card(target, job)


@click.command()
@as_json
@store_options
def workers(target: Target, as_json: bool) -> None:
    """List the workers.

    That is, those that were seen in the last hour and did not leave in order.
    """

    async def look() -> Sequence[WorkerInfo]:
        async with target.reading() as (_, ledger):
            return await ledger.workers()

    found = target.run(look)
    now = SystemClock().now()
    if as_json:
        target.screen.json({"workers": [worker_view(worker, now) for worker in found]})
        return
    if not found:
        target.screen.note("No worker was seen in the last hour.")
        return
    target.screen.table(
        ("id", "host", "pid", "queues", "running", "started", "seen", "version"),
        [
            (worker.id, worker.host, str(worker.pid), ", ".join(worker.queues),
             f"{worker.running}/{worker.concurrency}", ago(worker.started_at, now),
             ago(worker.seen_at, now) + ("" if is_alive(worker, now) else " (silent)"),
             worker.version)
            for worker in found
        ],
        numbers=("pid", "running"),
    )  # fmt: skip


async def missing(ledger: Ledger, id: str) -> str:
    """What to say of an id that isn't stored, with those it may have been meant to be."""
    near = [job.id for job in await ledger.find(limit=LOOKED_THROUGH)]
    return (
        f"no job {shown(id)}: it was never stored in this namespace, or is not kept any more"
        f"{did_you_mean(id, near)}"
    )


async def _check_names(ledger: Ledger, queue: str | None, task: str | None) -> None:
    if queue is None and task is None:
        return
    lines = await known_queue(ledger, queue) if queue is not None else await ledger.lines()
    there = {line.task for line in lines if line.task is not None}
    if task is not None and task not in there:
        where = f" in queue {queue!r}" if queue else ""
        raise JobNotFound(f"no job of task {task!r} was stored{where}{did_you_mean(task, there)}")


async def _check_after(ledger: Ledger, after: str | None) -> None:
    """Refuse what is no id, which would begin the list anew; the job itself may be gone by now."""
    if after is None:
        return
    try:
        UUID(after)
    except ValueError:
        if await ledger.get([after]) == [None]:
            raise JobNotFound(f"--after: {await missing(ledger, after)}") from None


def _survives(store: Store) -> str:
    return {
        "memory": "nothing, they die with the process",
        "process": "the death of any process, not a power cut",
        "power": "a power cut",
        "replica": "the loss of the machine",
    }[str(store.durability)]


def _unknown(lines: Sequence[Line], alive: Sequence[WorkerInfo]) -> dict[str, int]:
    """Queued jobs by task, where workers serve the queue and none of them knows the task."""
    counts: dict[str, int] = {}
    for line in lines:
        serving = [worker for worker in alive if line.queue in worker.queues]
        known = {task for worker in serving for task in worker.tasks}
        if line.task is not None and line.depth.queued and serving and line.task not in known:
            counts[line.task] = counts.get(line.task, 0) + line.depth.queued
    return counts


def _lines_table(target: Target, lines: Sequence[Line]) -> None:
    now = SystemClock().now()
    rows = [
        (line.queue + (" (paused)" if line.paused else ""), line.task or "(items)",
         *(str(getattr(line.depth, count)) for count in COUNTS),
         "" if line.oldest is None else span(now - line.oldest))
        for line in sorted(lines, key=lambda line: (line.queue, line.task or ""))
    ]  # fmt: skip
    if len(lines) > 1:
        totals = (str(sum(getattr(line.depth, count) for line in lines)) for count in COUNTS)
        rows.append(("total", "", *totals, ""))
    target.screen.table(("queue", "task", *COUNTS, "oldest"), rows, numbers=(*COUNTS, "oldest"))


def _what(job: Job, now: float) -> str:
    """The most telling thing about a job, in a few words."""
    if job.status is Status.QUEUED and job.run_at is not None and job.run_at > now:
        again = f"again {ago(job.run_at, now)}" if job.failures else ago(job.run_at, now)
        return f"{again} {failure_line(job.failure)}".strip()
    if job.status is Status.RUNNING and job.progress is not None:
        share = "" if job.progress.value is None else f"{job.progress.value:.0%} "
        return share + job.progress.text
    return failure_line(job.failure)


def _card(target: Target, job: Job) -> None:
    view = job_view(job)
    now = SystemClock().now()
    texts: dict[str, Any] = {
        name: value
        for name, value in view.items()
        if value not in (None, "", {}, False) and name not in ("failure", "progress")
    }
    for name in ("created_at", "run_at", "expires_at", "started_at", "finished_at"):
        moment = getattr(job, name)
        if moment is not None:
            texts[name] = f"{iso(moment)} ({ago(moment, now)})"
    texts["arguments"] = value_text(job.payload)
    texts.pop("arguments_base64", None)
    if job.result is not None:
        texts["result"] = value_text(job.result)
        texts.pop("result_base64", None)
    if job.progress is not None:
        share = "" if job.progress.value is None else f"{job.progress.value:.0%} "
        texts["progress"] = share + job.progress.text
    if job.failure is not None:
        texts["failure"] = failure_line(job.failure)
    width = max(map(len, texts))
    for name, value in texts.items():
        target.screen.line(f"{name.ljust(width)}  {value}".rstrip())
    if job.failure is not None and job.failure.traceback:
        target.screen.line()
        target.screen.line(job.failure.traceback.rstrip("\n"))
