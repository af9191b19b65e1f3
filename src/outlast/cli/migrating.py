"""The command that brings a store's tables up to date, or says that they are not."""

from __future__ import annotations

import click

from outlast.cli.target import Target, store_options
from outlast.errors import StoreUnavailable
from outlast.store import offers
from outlast.stores.versions import Versioned, Versions

__all__ = ["migrate"]


@click.command()
@click.option("--check", is_flag=True, help="Only say whether there is something to do.")
@click.option("--create", is_flag=True, help="Make a store where there is none yet.")
@store_options
def migrate(target: Target, check: bool, create: bool) -> None:
    """Bring the store's tables up to date.

    Programs do so by themselves when they open the store, if they may change tables. This is for a
    role that may, before a deployment: it goes forward only, one transaction a step, and an older
    outlast goes on working beside it. Killed anywhere, the same command goes on.

    With --check nothing is changed: exit code 0 if all is up to date, 1 if not.
    """

    async def run() -> tuple[Versions, Versions] | None:
        store = target.connect(create=create)
        if not offers(store, Versioned):
            return None
        before = await store.versions()
        if before.found == 0 and not create:
            raise StoreUnavailable(f"there is no store at {store.url} yet: --create makes one")
        if check or not before.pending:
            return before, before
        await store.open()
        await store.close()
        return before, await store.versions()

    found = target.run(run)
    if found is None:
        target.screen.line("This store has no tables: there is nothing to bring up to date.")
        return
    before, after = found
    if after.pending:
        hint = "`outlast migrate` changes it" if check else "it could not be changed (see the log)"
        target.screen.line(f"Schema {after.found}; this outlast makes {after.known}: {hint}.")
        raise click.exceptions.Exit(1)
    if before.found == after.found:
        target.screen.line(f"Schema {after.found}: up to date.")
    else:
        target.screen.line(f"Schema {before.found} is {after.found} now.")
