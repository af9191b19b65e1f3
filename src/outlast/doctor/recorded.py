"""A broker with records in another store: what each of the two is, and what that comes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from outlast.doctor.report import Finding, Report, Severity
from outlast.stores.urls import redact

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from outlast.stores.urls import Address

__all__ = ["together"]


async def together(
    broker: Report, examine: Callable[[], Awaitable[Report]], address: Address
) -> Report:
    """Both reports as one. What is accepted is what is recorded, so that one's class holds.

    A broker that can't be reached is an error, and nothing is lost by it: jobs are accepted, and
    start later.
    """
    records = await examine()
    shown = redact(address.records or "")
    both = Finding(
        id="RM10",
        severity=Severity.NOTE,
        read=f"messages on the broker: {_class(broker)}; records in {shown}: {_class(records)}",
        means="a job is accepted when it is recorded; a message that is lost is sent again",
    )
    bells = (replace(finding, durability=None) for finding in broker.findings)
    return Report(
        url=f"{broker.url}?records={shown}",
        required=records.required,
        findings=(both, *bells, *records.findings),
        reached=records.reached,
    )


def _class(report: Report) -> str:
    if not report.reached:
        return "not reached"
    return "can't be told" if report.accepted is None else str(report.accepted)
