"""The command that runs tasks: it checks its options and becomes the supervisor of the workers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.loading import split
from outlast.cli.moments import age

if TYPE_CHECKING:
    from outlast.cli.screen import Screen

__all__ = ["worker"]

LONGEST_LEASE = 86400.0
"""Seconds. For that long nobody else takes over what a machine that is gone was doing."""


def _queues(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    names = [name.strip() for text in given for name in text.split(",")]
    if not all(names):
        raise click.BadParameter("a queue needs a name")
    return tuple(dict.fromkeys(names))


def _become(user: str) -> None:
    """Give root up for good. Raises ``click.UsageError`` if there is no such user, or no right."""
    try:
        import pwd

        entry = pwd.getpwnam(user)
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except ImportError:
        raise click.UsageError("--user can't be had on this system") from None
    except KeyError:
        raise click.UsageError(f"--user: there is no user {user!r} here") from None
    except PermissionError:
        raise click.UsageError("--user is for root, who alone may become somebody else") from None
    if not os.access(sys.executable, os.X_OK):
        raise click.UsageError(f"--user: {user} may not run {sys.executable}")
    os.environ.update(HOME=entry.pw_dir, USER=entry.pw_name, LOGNAME=entry.pw_name)


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--queue", "-q", "queues", multiple=True, default=("default",), show_default=True,
    callback=_queues, metavar="QUEUE", help="Take jobs of this queue; may be repeated, or a,b,c.",
)  # fmt: skip
@click.option("--concurrency", "-c", type=click.IntRange(1, 100_000), default=10,
              show_default=True, help="Jobs at a time in each process.")  # fmt: skip
@click.option("--processes", "-p", type=click.IntRange(1, 1000), default=1,
              show_default=True, help="Worker processes.")  # fmt: skip
@click.option("--grace", type=age, default="25", show_default=True, metavar="AGE",
              help="How long jobs may go on after a stop; the rest is given back.")  # fmt: skip
@click.option("--lease", type=age, default="15", show_default=True, metavar="AGE",
              help="How soon others take over from a machine that is gone.")  # fmt: skip
@click.option("--create", is_flag=True, help="Create the store's file if it is missing.")
@click.option("--reload", is_flag=True, help="Start anew when a file changes; for development.")
@click.option("--loop", type=click.Choice(["asyncio", "uvloop"]), default="asyncio",
              show_default=True, help="The event loop.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
              default="info", show_default=True)  # fmt: skip
@click.option("--outbox", metavar="DATABASE_URL",
              help="Move on what app.outbox() wrote in that database, too.")  # fmt: skip
@click.option("--was", metavar="OLD_URL", help="Say so if the store before still holds jobs.")
@click.option("--user", metavar="NAME", help="As root: run as this user, with its groups.")
@click.pass_obj
def worker(screen: Screen, /, app: str, user: str | None, was: str | None, **options: Any) -> None:
    """Run tasks until stopped.

    \b
        outlast worker shop:app
        outlast worker shop:app -q default -q mail --processes 4

    The store is the app's own, or that of OUTLAST_URL or OUTLAST_URL_FILE if the app names none.
    SIGTERM or Ctrl-C stops in order: no more jobs are taken, running ones may finish within the
    grace time, the rest is given back and no attempt is spent. A second signal ends the grace
    time. SIGHUP replaces the worker processes, one generation after the other.
    """
    from outlast.worker.options import WorkerOptions
    from outlast.worker.supervisor import launch

    name, path = split(app)
    if not path:
        raise click.UsageError(f"{app!r}: write MODULE:APP, for example {name}:app")
    if not 1 <= options["lease"] <= LONGEST_LEASE:
        raise click.UsageError("--lease must be at least 1 second and at most a day (1d)")
    if user is not None:
        _become(user)
    elif hasattr(os, "geteuid") and os.geteuid() == 0:
        screen.note("Warning: tasks run as root here; --user NAME runs them as somebody else.")
    if was is not None:
        from outlast.cli.moving import tell_of_the_old

        tell_of_the_old(screen, was)
    loader, check = "outlast.cli.loading:for_worker", "outlast.doctor:look_over"
    launch(WorkerOptions(target=app, loader=loader, check=check, **options))
