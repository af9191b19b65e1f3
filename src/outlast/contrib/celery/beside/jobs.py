"""Celery's messages as jobs of ours, and what can't be one as a job that says why."""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from outlast.contrib.celery.beside.bodies import Refused
from outlast.contrib.celery.beside.canvas import check
from outlast.contrib.celery.beside.wire import read, stand_in, times
from outlast.errors import CodecError, ConfigurationError
from outlast.job import Job
from outlast.limits import MAX_ID, check_job

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from outlast.contrib.celery.beside.carrier import Taken
    from outlast.contrib.celery.beside.wire import Call
    from outlast.task import Task

__all__ = ["DELIVERY", "Jobs", "job_id", "task_name"]

DELIVERY = "celery-delivery"
"""The header in which a job carries what tells its message from any other."""
TAIL = 24
"""Characters that are kept free at the end of an id, for the jobs that follow from it."""

log = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_PLAIN = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


def task_name(name: str) -> str:
    """The name under which a task of Celery's is known here."""
    if _PLAIN.fullmatch(name):
        return f"celery:{name}"
    return f"celery:.{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:32]}"


def job_id(call: Call) -> str:
    """The Celery id, where it can be one of ours; each retry of Celery's is a job of its own."""
    id_ = call.id
    if call.retries or call.nesting:
        id_ = f"{id_}/{call.retries}.{call.nesting}"
    if _fits(id_):
        return id_
    return f"celery-{hashlib.sha256(id_.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _fits(id_: str) -> bool:
    return 0 < len(id_) <= MAX_ID - TAIL and id_.isascii() and id_.isprintable()


class Jobs:
    """Makes jobs. ``models`` are those of the tasks that are known, by Celery's names.

    What isn't known waits in the line of a task that nobody has yet, in the ``queue`` given.
    """

    def __init__(self, queue: str, refused: Job, priority: Callable[[int | None], int]) -> None:
        self._queue = queue
        self._refused = refused
        self._priority = priority
        self._models: dict[str, tuple[Job, Task[..., Any]]] = {}

    def add(self, name: str, model: Job, task: Task[..., Any]) -> None:
        self._models[name] = (model, task)

    @property
    def names(self) -> Mapping[str, Any]:
        return self._models

    def of(self, taken: Taken) -> Job:
        """The job of a message. Never raises: what can't be run becomes a job that tells it."""
        if taken.parcel is None:
            return self._tell(taken, None, "its envelope is no JSON object as kombu writes it")
        call = None
        try:
            call = read(taken.parcel, taken.queue)
            job = self.of_call(call)
            if taken.delivery is not None:
                job = replace(job, headers={DELIVERY: taken.delivery})
            check_job(job)
            return job
        except (Refused, ConfigurationError, CodecError) as error:
            return self._tell(taken, call, str(error))
        except Exception as error:
            # One message that nobody thought of must not keep those beside it from coming in.
            log.exception("a message of Celery's could not be read")
            return self._tell(taken, call, f"it can't be read: {type(error).__name__}: {error}")

    def of_call(self, call: Call) -> Job:
        """Raises ``Refused`` or ``CodecError`` if it could not be run to its end."""
        known = self._models.get(call.task)
        if known is None:
            model = Job(id="", queue=self._queue, task=task_name(call.task))
        else:
            model, task = known
            task.signature.from_plain(call.args, call.kwargs)
        if call.callbacks or call.errbacks or call.chain or call.chord:
            # Whether all of it can be read is found out before the work is done, not after.
            check(call)
        moments = times(call)
        return replace(
            model,
            id=job_id(call),
            payload=_encode({"call": call}),
            priority=self._priority(call.priority),
            run_at=moments.due,
            expires_at=moments.expires,
            timeout=moments.limit or model.timeout,
        )

    def _tell(self, taken: Taken, call: Call | None, why: str) -> Job:
        parcel = taken.parcel
        told: dict[str, Any] = {
            "why": why,
            "queue": taken.queue,
            "raw": base64.b64encode(taken.raw).decode(),
        }
        id_ = f"celery-{hashlib.sha256(taken.raw).hexdigest()[:32]}"
        if parcel is not None:
            named = parcel.headers.get("id") or parcel.properties.get("correlation_id")
            id_ = named if isinstance(named, str) and _fits(named) else stand_in(parcel)
            told |= {
                "id": named if isinstance(named, str) else None,
                "reply_to": parcel.properties.get("reply_to") or None,
                "content_type": parcel.content_type,
                "headers": _encode(parcel.headers).decode(),
            }
        if call is not None:
            told["id"] = call.id
        headers = {} if taken.delivery is None else {DELIVERY: taken.delivery}
        payload = _encode({"message": told})
        return replace(self._refused, id=id_, payload=payload, headers=headers)
