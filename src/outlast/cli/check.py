"""The command that finds out whether a task may run twice: by cutting runs short, in memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.enqueuing import arguments_of
from outlast.cli.loading import app_of, find_app, find_function, find_task

if TYPE_CHECKING:
    from outlast.cli.screen import Screen

__all__ = ["check"]


@click.command()
@click.argument("task", metavar="MODULE:TASK")
@click.option("--args", "arguments", default="{}", metavar="JSON", help="The task's arguments.")
@click.option(
    "--observe",
    required=True,
    metavar="MODULE:FUNC",
    help="Says what the world looks like after a run; what it returns is compared.",
)
@click.option("--setup", metavar="MODULE:FUNC", help="Makes the world anew before each run.")
@click.option("--app", metavar="MODULE:APP", help="The task's app, if it isn't in its module.")
@click.pass_obj
def check(
    screen: Screen, task: str, arguments: str, observe: str, setup: str | None, app: str | None
) -> int:
    """Find out whether a task may run twice.

    It is run once to its end. Then run after run is cut short, at each line of the task's own body,
    at each await and at each step, and the task is run again, as after a worker's death. What
    --observe returns must be the same each time. Jobs are kept in memory: the task's store is not
    touched, but all that the task itself does is done, many times. Do it where that does no harm.

    \b
        outlast check shop:charge --args '{"order": 42}' --observe shop:charges --setup shop:clear

    Exit code 1: a repeat shows. The line after which it shows is named, with what to do about it.
    """
    from outlast.testing import NotIdempotent, assert_idempotent

    found = find_task(task)
    owner = app_of(task, found) if app is None else find_app(app)
    args, kwargs = arguments_of(found, arguments)
    look: Any = find_function(observe)
    clear: Any = None if setup is None else find_function(setup)
    try:
        tried = asyncio.run(
            assert_idempotent(owner, found, args, kwargs, observe=look, setup=clear)
        )
    except NotIdempotent as shown:
        screen.line(str(shown))
        return 1
    screen.line(f"{found.name} may run twice: {tried} runs were cut short, and no repeat shows")
    return 0
