"""Beside Celery: outlast's workers run what a Celery app sends, and send what its workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.contrib.celery.beside.road import Road
from outlast.errors import ConfigurationError
from outlast.job import DAY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.app import Outlast
    from outlast.contrib.celery.beside.sending import Sender
    from outlast.task import Task

__all__ = ["celery_tasks", "sender"]


def celery_tasks(
    app: Outlast,
    tasks: Mapping[str, Task[..., Any]],
    *,
    broker: str,
    backend: str | None = None,
    queues: Sequence[str] = ("celery",),
    queue: str = "default",
    routes: Mapping[str, str] | None = None,
    result_expires: float = DAY,
    take_over: float = 30.0,
    track_started: bool = False,
    broker_options: Mapping[str, Any] | None = None,
    backend_options: Mapping[str, Any] | None = None,
) -> None:
    """What ``Outlast.celery_tasks`` does.

    ``queue`` is ours: there waits what is sent to Celery, and what no task here is known for.
    ``routes`` says which of Celery's queues tasks go to that are not known here, by name or by
    pattern (``"shop.*"``); else it is ``celery``, unless the call says it.
    ``result_expires`` is Celery's, in seconds, and so are the options: those of its transports.
    What a process of ours took and did not store is taken by another after ``take_over`` seconds.
    ``track_started`` is Celery's ``task_track_started``: STARTED is told to the result backend.
    Called again, it adds tasks. Raises ``ConfigurationError``.
    """
    road = _road(app)
    if road is None:
        road = Road(
            app,
            broker=broker,
            backend=backend,
            queues=queues,
            queue=queue,
            routes=routes or {},
            result_expires=result_expires,
            take_over=take_over,
            track_started=track_started,
            broker_options=broker_options or {},
            backend_options=backend_options or {},
        )
    elif road.broker != broker:
        raise ConfigurationError(
            "celery_tasks: an app is beside one Celery broker; make a second Outlast for another"
        )
    road.run(tasks)


def sender(app: Outlast, name: str, *, queue: str | None = None) -> Sender:
    """What ``Outlast.celery`` does; ``queue`` is the Celery queue that calls are sent to."""
    road = _road(app)
    if road is None:
        raise ConfigurationError(
            "app.celery(): say first where Celery is: app.celery_tasks({}, broker=...)"
        )
    return road.sender(name, queue)


def _road(app: Outlast) -> Road | None:
    return next((one for one in app.hooks if isinstance(one, Road)), None)
