"""The commands that change jobs and queues: retry, cancel, purge, pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.reading import missing
from outlast.cli.suggest import did_you_mean, listed
from outlast.cli.target import Target, known_queue, store_options
from outlast.errors import JobNotFound, KeyConflict
from outlast.job import Status
from outlast.limits import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.cli.screen import Screen
    from outlast.job import Job
    from outlast.store import Ledger, Line

__all__ = ["cancel", "pause", "purge", "resume", "retry"]

PAGE = 500
PURGEABLE = tuple(each for each in Status if each is not Status.RUNNING)

yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask.")


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--dead", is_flag=True, help="Every dead job, instead of ids.")
@click.option("--queue", "-q", metavar="QUEUE", help="With --dead: of this queue only.")
@click.option("--task", "-t", metavar="TASK", help="With --dead: of this task only.")
@yes_option
@store_options
def retry(
    target: Target,
    ids: tuple[str, ...],
    dead: bool,
    queue: str | None,
    task: str | None,
    yes: bool,
) -> int:
    """Queue dead or cancelled jobs again.

    They get fresh budgets of attempts and crashes. The exit code is 3 if an id is not stored, else
    1 if a job was in no state to be retried or its key belongs to another job by now.
    """
    if bool(ids) == dead:
        raise click.UsageError("name the jobs by their ids, or say --dead for all dead ones")
    if ids and (queue or task):
        raise click.UsageError("--queue and --task go with --dead, not with ids")

    async def change() -> int:
        async with target.writing() as (_, ledger):
            if ids:
                return await _retry_each(target.screen, ledger, ids)
            return await _retry_dead(target.screen, ledger, queue, task, yes)

    return target.run(change)


@click.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@store_options
def cancel(target: Target, ids: tuple[str, ...]) -> int:
    """Cancel jobs, queued or running.

    Queued ones are cancelled at once; of running ones the worker is asked. A cancelled job never
    starts, whatever is restarted. The exit code is 3 if an id is not stored, else 1 if a job had
    ended already.
    """

    async def change() -> int:
        async with target.writing() as (_, ledger):
            code = 0
            for id, answer in zip(ids, await ledger.cancel(ids), strict=True):
                if answer == "missing":
                    target.screen.note(f"Error: {await missing(ledger, id)}")
                    code = 3
                elif answer == "ended":
                    target.screen.note(f"{id} had ended already; `outlast show {id}` says how")
                    code = code or 1
                elif answer == "requested":
                    target.screen.line(f"{id} is running; its worker was asked to cancel it")
                else:
                    target.screen.line(f"{id} cancelled")
            return code

    return target.run(change)


@click.command()
@click.argument("queue")
@click.option(
    "--state", "-s", "states", multiple=True, default=("queued",), show_default=True,
    type=click.Choice([*map(str, PURGEABLE), "all"]),
    help="Jobs in this state; may be repeated. `all`: in every state but running.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Count them, and delete nothing.")
@yes_option
@store_options
def purge(target: Target, queue: str, states: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Delete a queue's jobs.

    Their keys and results go with them. Running jobs always stay. The number that is printed is
    that of the jobs that were really removed.
    """
    wanted = PURGEABLE if "all" in states else tuple(map(Status, dict.fromkeys(states)))
    names = "/".join(map(str, wanted))

    async def change() -> str:
        async with target.writing() as (store, ledger):
            await known_queue(ledger, queue)
            count = await ledger.purge(queue, wanted, dry_run=True)
            what = f"{_jobs(count, names)} of queue {queue!r}"
            if dry_run:
                return f"Would delete {what} in {store.url}."
            if count and not yes:
                question = target.screen.clean(f"Delete {what} in {store.url}?")
                click.confirm(question, abort=True, err=True)
            removed = await ledger.purge(queue, wanted)
            return f"Deleted {_jobs(removed, names)} of queue {queue!r}."

    target.screen.line(target.run(change))


@click.command()
@click.argument("queue")
@click.option("--force", is_flag=True, help="Even if the queue was never used.")
@store_options
def pause(target: Target, queue: str, force: bool) -> None:
    """Let no worker take jobs from a queue.

    What runs goes on, and jobs can still be stored. The pause lasts until `outlast resume`, over
    all restarts.
    """
    _set_paused(target, queue, force, True)
    target.screen.line(f"Queue {queue!r} is paused; jobs can still be stored in it.")


@click.command()
@click.argument("queue")
@click.option("--force", is_flag=True, help="Even if the queue was never used.")
@store_options
def resume(target: Target, queue: str, force: bool) -> None:
    """Let workers take jobs from a queue again."""
    _set_paused(target, queue, force, False)
    target.screen.line(f"Queue {queue!r} is not paused.")


def _set_paused(target: Target, queue: str, force: bool, paused: bool) -> None:
    async def change() -> None:
        async with target.writing() as (_, ledger):
            if force:
                check_name(queue, "queue")
            else:
                await known_queue(ledger, queue)
            await ledger.pause(queue, paused)

    target.run(change)


async def _retry_each(screen: Screen, ledger: Ledger, ids: Sequence[str]) -> int:
    code = 0
    for id in ids:
        (job,) = await ledger.get((id,))
        if job is None:
            screen.note(f"Error: {await missing(ledger, id)}")
            code = 3
        elif not await _revived(screen, ledger, job):
            code = code or 1
        else:
            screen.line(f"{id} queued again")
    return code


async def _revived(screen: Screen, ledger: Ledger, job: Job) -> bool:
    try:
        (done,) = await ledger.revive((job.id,))
    except KeyConflict as error:
        screen.note(f"{job.id} stays {job.status}: {error}")
        return False
    if not done:
        screen.note(f"{job.id} is {job.status}; only dead and cancelled jobs can be retried")
    return done


async def _retry_dead(
    screen: Screen, ledger: Ledger, queue: str | None, task: str | None, yes: bool
) -> int:
    lines = await known_queue(ledger, queue) if queue else await ledger.lines()
    fitting = _of_task(lines, task)
    count = sum(line.depth.dead for line in fitting)
    if count and not yes:
        question = f"Queue {_jobs(count, 'dead')} again?"
        click.confirm(screen.clean(question), abort=True, err=True)
    revived = refused = 0
    after: str | None = None
    while page := await ledger.find(
        status=(Status.DEAD,), queue=queue, task=task, after=after, limit=PAGE
    ):
        after = page[-1].id
        try:
            answers = list(await ledger.revive([job.id for job in page]))
        except KeyConflict:
            # One of them lost its key to another job; only one by one is it known which.
            answers = [await _revived(screen, ledger, job) for job in page]
        revived += sum(answers)
        refused += len(answers) - sum(answers)
    screen.line(f"Queued {_jobs(revived, 'dead')} again.")
    return 1 if refused else 0


def _of_task(lines: Sequence[Line], task: str | None) -> Sequence[Line]:
    if task is None:
        return lines
    there = {line.task for line in lines if line.task is not None}
    if task not in there:
        raise JobNotFound(
            f"no job of task {task!r} was stored; the tasks here are {listed(there)}"
            f"{did_you_mean(task, there)}"
        )
    return [line for line in lines if line.task == task]


def _jobs(count: int, kind: str) -> str:
    return f"{count} {kind} job{'' if count == 1 else 's'}"
