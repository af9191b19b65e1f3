"""Reads a deployment and says what it survives, what weakens it, and what to do about that."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from outlast.doctor.report import Finding, Report, Severity
from outlast.errors import DurabilityError, StoreMoved, Unsupported
from outlast.movable import Movable
from outlast.store import offers
from outlast.stores import connect, redact
from outlast.stores.urls import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.store import Durability, Store

__all__ = ["Finding", "Report", "Severity", "examine", "look_over"]


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
    if address.scheme == "redis":
        connect(url)  # says so if the driver is missing
        from outlast.doctor.redis import examine as examine_redis

        return await examine_redis(address, required=required, quick=quick)
    if address.scheme == "postgresql":
        connect(url)
        from outlast.doctor.postgres import examine as examine_postgres

        return await examine_postgres(address, required=required)
    if address.scheme == "rabbitmq":
        connect(url)
        from outlast.doctor.rabbitmq import examine as examine_rabbitmq

        if address.records is not None:
            from outlast.doctor.recorded import together

            asked = partial(examine, address.records, required=required, deep=deep, quick=quick)
            return await together(
                await examine_rabbitmq(address, required=required, quick=quick), asked, address
            )
        return await examine_rabbitmq(address, required=required, quick=quick)
    raise Unsupported(f"{redact(url)} is gone with its process: there is nothing to look at")


async def look_over(store: Store) -> Sequence[str]:
    """The quick form for a store that a worker has just opened: what weakens it, a line each.

    Raises ``DurabilityError`` if what is accepted there survives less than it was opened for, and
    ``StoreMoved`` if its jobs were moved elsewhere, or are on their way. A store on a server finds
    the rest out with each connection; nothing more is asked of it here, where its password isn't
    known.
    """
    if offers(store, Movable) and (mark := await store.departure()) is not None:
        raise StoreMoved(
            f"the jobs of {store.url} were moved to {mark.to}, or are on their way: start workers"
            " there, with the URL of the app changed"
        )
    store = getattr(store, "records", store)
    if not store.url.startswith("sqlite:"):
        return []
    required = store.durability
    try:
        report = await examine(f"{store.url}?durability={required}", required=required, quick=True)
    except Unsupported:
        return []
    found = [finding for finding in report.worst() if finding.severity in _TOLD]
    lines = [f"{finding.id}: {finding.read}; {finding.means}" for finding in found]
    if report.accepted is not None and report.accepted < required:
        raise DurabilityError(
            f"{store.url} guarantees durability {report.accepted}, and {required} was asked for:"
            f" {' | '.join(lines)}. Mend that (outlast doctor says how), or ask for less with"
            f" durability={report.accepted}"
        )
    return lines


_TOLD = (Severity.WARNING, Severity.ERROR)
