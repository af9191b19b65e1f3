"""Reads a deployment and says what it survives, what weakens it, and what to do about that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.doctor.report import Finding, Report, Severity
from outlast.errors import Unsupported
from outlast.stores import redact
from outlast.stores.urls import parse

if TYPE_CHECKING:
    from outlast.store import Durability

__all__ = ["Finding", "Report", "Severity", "examine"]


async def examine(
    url: str, *, required: Durability | None = None, deep: bool = False, quick: bool = False
) -> Report:
    """Look at the store behind a URL. Nothing in it is changed.

    ``required`` is the class that must hold, else that of the URL, else power. ``deep`` reads every
    row; ``quick`` leaves out what takes more than a moment, as a worker does when it starts. What
    can't be reached is a report that says so, not an error.

    Raises ``ConfigurationError`` for a URL that can't be meant, ``Unsupported`` where a store has
    nothing that could be looked at.
    """
    address = parse(url)
    if address.scheme == "sqlite":
        from outlast.doctor.sqlite import examine as examine_sqlite

        return await examine_sqlite(address, required=required, deep=deep, quick=quick)
    raise Unsupported(f"{redact(url)} is gone with its process: there is nothing to look at")
