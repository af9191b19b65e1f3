"""The command for systemd and Kubernetes: an exit code that says whether all is well."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

import click

from outlast.cli.moments import age, span
from outlast.cli.reading import as_json
from outlast.cli.target import Target, moved_to, store_options
from outlast.cli.views import is_alive
from outlast.clock import SystemClock
from outlast.errors import JobNotFound, StoreError
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.store import Ledger, Line, WorkerInfo

__all__ = ["health"]


class Check(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool
    found: str


@click.command()
@click.option(
    "--durability", type=click.Choice([str(each) for each in Durability]),
    help="At least this class must hold (default: what the URL or the app asks for).",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(0), default=0, is_flag=False, flag_value=1, metavar="[N]",
    help="At least N workers (1 if no number is given) were seen in the last minute.",
)  # fmt: skip
@click.option(
    "--max-age", type=age, metavar="AGE",
    help="No ready job has waited longer than this: 90, 15m, 2h.",
)  # fmt: skip
@click.option("--queue", "-q", "queues", multiple=True, metavar="QUEUE",
              help="Look at this queue only; may be repeated.")  # fmt: skip
@click.option("--timeout", type=age, default="5", show_default=True, metavar="AGE",
              help="Unhealthy if the store has not answered by then.")  # fmt: skip
@as_json
@store_options
def health(
    target: Target,
    durability: str | None,
    workers: int,
    max_age: float | None,
    queues: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> int:
    """Say by exit code whether all is well.

    0 is healthy, 1 is not. The store must answer, with the durability that was asked for. More is
    checked on request.
    """

    async def look() -> list[Check]:
        checks = []
        async with asyncio.timeout(timeout), target.writing() as (store, ledger):
            checks.append(Check("store", True, store.url))
            wanted = Durability.MEMORY if durability is None else Durability[durability.upper()]
            checks.append(Check("durability", store.durability >= wanted, str(store.durability)))
            if (to := await moved_to(store)) is not None:
                checks.append(Check("moved", False, f"the jobs {to}"))
            checks += await _on_request(ledger, queues, workers, max_age)
        return checks

    try:
        checks = target.run(look)
    except TimeoutError:
        checks = [Check("store", False, f"no answer from {target.name} in {span(timeout)}")]
    except (StoreError, JobNotFound) as error:
        checks = [Check("store", False, str(error))]
    healthy = all(check.ok for check in checks)
    if as_json:
        target.screen.json({"healthy": healthy, "checks": [check._asdict() for check in checks]})
    else:
        for check in checks:
            target.screen.line(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.found}")
    return 0 if healthy else 1


async def _on_request(
    ledger: Ledger, queues: Sequence[str], workers: int, max_age: float | None
) -> list[Check]:
    now = SystemClock().now()
    checks = []
    if workers:
        alive = _alive(await ledger.workers(), queues, now)
        checks.append(Check("workers", alive >= workers, f"{alive} alive, {workers} wanted"))
    if max_age is not None:
        lines = [ln for ln in await ledger.lines() if not queues or ln.queue in queues]
        oldest = _oldest(lines, now)
        found = (
            "nothing waits" if oldest is None else f"the oldest ready job waits for {span(oldest)}"
        )
        checks.append(Check("age", oldest is None or oldest <= max_age, found))
    return checks


def _alive(workers: Sequence[WorkerInfo], queues: Sequence[str], now: float) -> int:
    return sum(
        is_alive(worker, now) and (not queues or not set(queues).isdisjoint(worker.queues))
        for worker in workers
    )


def _oldest(lines: Sequence[Line], now: float) -> float | None:
    """Seconds that the oldest ready job waits; a paused queue's jobs wait on purpose."""
    waiting = [
        now - line.oldest
        for line in lines
        if line.depth.ready and not line.paused and line.oldest is not None
    ]
    return max(waiting, default=None)
