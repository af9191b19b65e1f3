"""The command that copies the store while it is in use, and verifies the copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outlast.cli.reading import as_json
from outlast.cli.target import Target, store_options

__all__ = ["backup"]


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@as_json
@store_options
def backup(target: Target, file: Path, as_json: bool) -> None:
    """Copy the store while it is in use, and verify the copy.

    FILE must be a new one; it gets its name when the copy is whole and checked.

    To restore, stop every worker and producer, move the store's file away with its -wal and -shm,
    put the copy in its place, and start them again: jobs that ended after the copy was made will
    run again.
    """
    if file.exists():
        raise click.UsageError(f"{file} is there already; a backup never overwrites a file")
    copy_path = file.absolute()

    async def copy() -> dict[str, Any]:
        async with target.reading() as (_, ledger):
            return await ledger.backup(copy_path)

    try:
        found = target.run(copy)
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(f"{copy_path} can't be written: {reason}") from error
    if as_json:
        target.screen.json(found)
        return
    target.screen.line(f"Saved and verified: {copy_path}")
    for name, value in found.items():
        target.screen.line(f"  {name}: {value}")
