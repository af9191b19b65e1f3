"""The command that moves jobs on from an outbox in the user's database to the store."""

from __future__ import annotations

import asyncio
import signal

import click

from outlast.cli.target import Target, store_options, warn_of_password
from outlast.relay import relay as relay_jobs
from outlast.stores import redact

__all__ = ["relay"]


@click.command()
@click.argument("database", metavar="DATABASE_URL")
@click.option("--once", is_flag=True, help="Move on what waits there now, and end.")
@click.option("--create", is_flag=True, help="Make the tables if they are missing.")
@click.option("--library", type=click.Choice(["sqlite3", "apsw"]), default="sqlite3",
              show_default=True, help="What opens the SQLite file.")  # fmt: skip
@store_options
def relay(target: Target, database: str, once: bool, create: bool, library: str) -> None:
    """Move jobs on from an outbox to the store.

    \b
        outlast relay postgresql://shop@db/shop --app shop:app

    DATABASE_URL is where the rows are that app.outbox(connection) wrote: sqlite:///FILE or
    postgresql://. Any number of relays may run; each job gets into the store once, with the id it
    has there. Stop it with Ctrl-C or SIGTERM: what is left is moved on the next time.
    """
    target.screen.hide(database)
    warn_of_password(target.screen, database)
    moved = 0

    def tell(more: int) -> None:
        nonlocal moved
        moved += more

    async def run() -> None:
        store = target.connect()
        work = asyncio.ensure_future(
            relay_jobs(
                store, database, target.namespace, library, create=create, once=once, tell=tell
            )
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            target.screen.note("Stopped.")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    if not once:
        target.screen.note(f"Moving jobs on from {redact(database)}; Ctrl-C stops it.")
    target.run(run)
    target.screen.line(f"Moved {moved} jobs on.")
