"""The command that runs tasks: it checks its options and becomes the supervisor of the workers."""

from __future__ import annotations

from typing import Any

import click

from outlast.cli.loading import split
from outlast.cli.moments import age

__all__ = ["worker"]


def _queues(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    names = [name.strip() for text in given for name in text.split(",")]
    if not all(names):
        raise click.BadParameter("a queue needs a name")
    return tuple(dict.fromkeys(names))


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
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def worker(app: str, **options: Any) -> None:
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
    if options["lease"] < 1:
        raise click.UsageError("--lease must be at least 1 second")
    launch(WorkerOptions(target=app, loader="outlast.cli.loading:for_worker", **options))
