"""Hears what is revoked: Celery's ``control.revoke``, which is broadcast to all of its workers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from outlast.access import ledger_of
from outlast.contrib.celery.beside.bodies import Refused, parse, unpack
from outlast.errors import ConfigurationError, OutlastError
from outlast.job import Status

if TYPE_CHECKING:
    from outlast.contrib.celery.beside.carrier import Broker
    from outlast.contrib.celery.beside.road import Road
    from outlast.contrib.celery.beside.wire import Parcel
    from outlast.job import Job

__all__ = ["Revoking"]

log = logging.getLogger(__name__)

MOST = 50_000
"""Ids that are remembered for messages that have yet to come in: as many as Celery's workers do."""
LONG_AGO = 1.0
PAUSE = 1.0
"""Seconds until a broker that was away is listened to again."""


class Revoking:
    """One for each intake. Like Celery's workers it knows what was said while it was there."""

    def __init__(self, road: Road, broker: Broker) -> None:
        self._road = road
        self._broker = broker
        self._ids: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._broker.overhear(self._on_parcel)
            except ConfigurationError as error:
                log.warning("what Celery revokes won't be heard: %s", error)
                return
            except OutlastError as error:
                log.warning("what Celery revokes isn't heard: %s", error)
            except Exception:
                log.exception("what Celery revokes isn't heard")
            await self._road.app.clock.sleep(PAUSE)

    async def _on_parcel(self, parcel: Parcel) -> None:
        try:
            told = parse(
                unpack(parcel.body, parcel.properties.get("body_encoding")),
                parcel.content_type,
                parcel.content_encoding,
                None,
            )
        except Refused as error:
            log.warning("a broadcast to Celery's workers can't be read: %s", error)
            return
        if not isinstance(told, dict) or told.get("method") != "revoke":
            return
        if told.get("destination") or told.get("pattern"):
            return  # to workers that are named; none of ours is
        arguments: Any = told.get("arguments") or {}
        given = arguments.get("task_id") if isinstance(arguments, dict) else None
        ids = [str(one) for one in (given if isinstance(given, list) else [given]) if one]
        for id_ in ids:
            self._ids[id_] = None
        while len(self._ids) > MOST:
            del self._ids[next(iter(self._ids))]
        await self._cancel(ids, running=bool(arguments.get("terminate")))

    def arriving(self, job: Job) -> Job:
        """The job as it is to be stored: one that was revoked has expired, and never starts."""
        known = job.task in self._road.tasks and job.id.partition("/")[0] in self._ids
        return replace(job, expires_at=LONG_AGO) if known else job

    async def _cancel(self, ids: list[str], *, running: bool) -> None:
        """What has not started, as Celery has it; with ``terminate`` what runs as well."""
        ledger = ledger_of(self._road.app.store)
        states = (Status.QUEUED, Status.RUNNING) if running else (Status.QUEUED,)
        found = await ledger.get(ids) if ids else ()
        mine = [
            job.id
            for job in found
            if job is not None and job.task in self._road.tasks and job.status in states
        ]
        if mine:
            await ledger.cancel(mine)
            log.info("revoked by Celery: %s", ", ".join(mine))
