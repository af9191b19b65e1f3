"""An app's road to one Celery deployment: which of its tasks run here, and what is sent there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import logging
import os
import socket
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from outlast.chance import SystemChance
from outlast.contrib.celery.beside import canvas
from outlast.contrib.celery.beside.bodies import Refused
from outlast.contrib.celery.beside.canvas import End
from outlast.contrib.celery.beside.carrier import open_backend, open_broker
from outlast.contrib.celery.beside.errors import of_error, of_failure
from outlast.contrib.celery.beside.intake import Intake
from outlast.contrib.celery.beside.jobs import Jobs, task_name
from outlast.contrib.celery.beside.sending import Sender, Sending
from outlast.contrib.celery.beside.wire import Call
from outlast.errors import CodecError, ConfigurationError
from outlast.failing import describe
from outlast.hooks import Hooks
from outlast.job import DAY, Job
from outlast.limits import MAX_PRIORITY
from outlast.options import seconds
from outlast.retry import RetryPolicy
from outlast.running import current
from outlast.task import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set
    from concurrent.futures import Future

    from outlast.app import Outlast
    from outlast.contrib.celery.beside.carrier import Backend, Broker
    from outlast.job import Verdict

__all__ = ["Road"]

log = logging.getLogger(__name__)

ALWAYS = RetryPolicy(attempts=1_000_000_000, delay=0.5, cap=60.0)
"""What is to be sent is tried until it is: a broker that is away comes back."""
TOLD = 30 * DAY
"""How long it is remembered that an end was told, where it could be told twice."""
LATE = 2.0
"""Seconds that the end of a run waits for its STARTED, where that could come after it."""

CELERY = "celery"
"""Celery's own default queue."""

_encode = msgspec.json.Encoder().encode


class Road(Hooks):
    """What ``app.celery_tasks`` and ``app.celery`` share. There is one for an app."""

    def __init__(
        self,
        app: Outlast,
        *,
        broker: str,
        backend: str | None,
        queues: Sequence[str],
        queue: str,
        routes: Mapping[str, str],
        result_expires: float,
        take_over: float,
        track_started: bool,
        broker_options: Mapping[str, Any],
        backend_options: Mapping[str, Any],
    ) -> None:
        if isinstance(queues, str) or not all(queues):
            raise ConfigurationError(f"queues={queues!r}: give a list of names of Celery's queues")
        self.app = app
        self.broker = broker
        self._routes = dict(routes)
        self._track_started = track_started
        self.take_over = seconds("take_over", take_over)
        self.queues = tuple(queues)
        if backend is not None and backend.startswith("rpc://"):
            backend = f"rpc+{broker}"  # results are messages on the same server
        self._open_broker = partial(open_broker, broker, dict(broker_options))
        self._open_backend = (
            None
            if backend is None
            else partial(open_backend, backend, result_expires, dict(backend_options))
        )
        # Made once now, so that what is wrong is said now.
        known = self._open_broker()
        if self._open_backend is not None:
            self._open_backend()
        self._end = self._own("celery-end", queue, self._tell)
        self._send = self._own("celery-send", queue, self._deliver)
        refused = self._own("celery-refused", queue, self._refuse, retry=RetryPolicy())
        self.jobs = Jobs(queue, _model(refused), known.priority)
        self._ends = _model(self._end)
        self._sending: Sending | None = None
        self._intakes: dict[str, Intake] = {}
        self._lines = {queue}
        self._tasks: set[str] = set()
        self._starting: dict[str, Future[None]] = {}
        self._chance = SystemChance()
        app.hooks.append(self)

    def _own(self, name: str, queue: str, fn: Any, retry: RetryPolicy = ALWAYS) -> Task[..., Any]:
        # Before all that waits: who waits for a result has waited long enough.
        made: Task[..., Any] = self.app.task(
            name=name, queue=queue, retry=retry, priority=MAX_PRIORITY
        )(fn)
        return made

    @property
    def lines(self) -> Sequence[str]:
        """Our own queues that the jobs from Celery are in."""
        return sorted(self._lines)

    @property
    def tasks(self) -> Set[str]:
        """Our names of the tasks that Celery's messages are run by."""
        return self._tasks

    def other_id(self, id_: str, delivery: str | None) -> str:
        """An id for another call that was given an id which is taken."""
        told = self._chance.uuid7() if delivery is None else delivery
        return f"{id_}+{hashlib.sha256(told.encode()).hexdigest()[:10]}"

    # -- what runs here

    def run(self, tasks: Mapping[str, Task[..., Any]]) -> None:
        """Run what Celery sends under these names. Raises ``ConfigurationError``."""
        for name, task in tasks.items():
            if not isinstance(task, Task):
                raise ConfigurationError(
                    f"celery_tasks: {name!r} stands for {task!r}; give a task made by @app.task"
                )
            options = task.options
            if options.processes or options.key is not None or callable(options.lane):
                raise ConfigurationError(
                    f"celery_tasks: task {task.name!r} has processes=True, key= or a function as "
                    "lane=, which calls from Celery can't have; make one without for them"
                )
            make = self._coroutine if task.kind == "async" else self._function
            stand_in = self.app.task(
                name=task_name(name),
                queue=options.queue,
                retry=options.retry,
                timeout=options.timeout,
                priority=options.priority,
                keep=options.keep,
                max_crashes=options.max_crashes,
                lane=options.lane,
            )(make(task))
            self._lines.add(options.queue)
            self._tasks.add(stand_in.name)
            self.jobs.add(name, _model(stand_in), task)

    def _coroutine(self, task: Task[..., Any]) -> Any:
        async def celery(call: dict[str, Any]) -> Any:
            made = msgspec.convert(call, Call)
            try:
                args, kwargs = task.signature.from_plain(made.args, made.kwargs)
                value = await task.fn(*args, **kwargs)
            except Exception as error:
                await self._start_is_told()
                self._failed(made, error)
                raise
            await self._start_is_told()
            return self._succeeded(task, made, value)

        return celery

    async def _start_is_told(self) -> None:
        """Return when STARTED can't come after the end any more."""
        told = self._starting.pop(current().id, None)
        if told is not None:
            await asyncio.wait((asyncio.wrap_future(told),), timeout=LATE)

    def _function(self, task: Task[..., Any]) -> Any:
        def told() -> None:
            start = self._starting.pop(current().id, None)
            if start is not None:
                concurrent.futures.wait((start,), timeout=LATE)

        def celery(call: dict[str, Any]) -> Any:
            made = msgspec.convert(call, Call)
            try:
                args, kwargs = task.signature.from_plain(made.args, made.kwargs)
                value = task.fn(*args, **kwargs)
            except Exception as error:
                told()
                self._failed(made, error)
                raise
            told()
            return self._succeeded(task, made, value)

        return celery

    def _succeeded(self, task: Task[..., Any], call: Call, value: Any) -> Any:
        """Have what follows be stored with the end of the run that this is."""
        run = current()
        raw = task.signature.encode_result(value)
        plain = msgspec.json.decode(raw)
        end = canvas.succeeded(call, plain, Raw(raw), self._now())
        jobs: list[Job] = []
        if not end.sizes:
            made = [(one, self._here(one)) for one in end.calls]
            jobs = [job for _, job in made if job is not None]
            end = replace(end, calls=[one for one, job in made if job is None])
        # Under an id of its own: one that had died before, and was told of, may have been revived.
        run.then = (*run.then, *jobs, *self._job_of(end, f"{run.id}.done", run.queue, keep=0.0))
        return plain

    def _here(self, call: Call) -> Job | None:
        """The job of a call that runs here anyway, and needs no way round by the broker."""
        if call.task not in self.jobs.names or call.queue not in ("", *self.queues):
            return None
        try:
            return self.jobs.of_call(call)
        except (Refused, ConfigurationError, CodecError):
            # Such as of arguments that don't fit. It is refused where it comes in, and told of
            # there: it is not what has just run that is wrong.
            return None

    def _failed(self, call: Call, error: Exception) -> None:
        """The same for a run that failed, in case it is the last."""
        run = current()
        end = canvas.failed(
            call, "FAILURE", of_error(error), describe(error).traceback, self._now()
        )
        run.then_dead = (*run.then_dead, *self._job_of(end, f"{run.id}.end", run.queue, keep=TOLD))

    def _job_of(self, end: End, id_: str, queue: str, keep: float) -> tuple[Job, ...]:
        if self._open_backend is None:
            end = replace(end, results=[], sizes=[], parts=[])
        if end.is_empty:
            return ()
        payload = _encode({"end": end})
        return (replace(self._ends, id=id_, payload=payload, queue=queue, keep=keep),)

    def ending_of(self, job: Job) -> tuple[Job, ...]:
        """What is to be told of a job that ended without telling it: it crashed, or expired."""
        if job.task == "celery-refused":
            return ()
        try:
            call = msgspec.convert(msgspec.json.decode(job.payload)["call"], Call)
            state = "REVOKED" if job.status == "cancelled" else "FAILURE"
            trace = None if job.failure is None else job.failure.traceback or None
            end = canvas.failed(call, state, of_failure(job.failure), trace, self._now())
        except (msgspec.MsgspecError, KeyError, TypeError, Refused) as error:
            log.warning("job %s: nobody can be told of its end: %s", job.id, error)
            return ()
        return self._job_of(end, f"{job.id}.end", job.queue, keep=TOLD)

    def _now(self) -> str:
        return datetime.fromtimestamp(self.app.clock.now(), UTC).isoformat()

    # -- states on the way

    def job_started(self, job: Job) -> None:
        if self._track_started and job.task in self._tasks:
            where = {"pid": os.getpid(), "hostname": socket.gethostname()}
            told = self._note(job, "STARTED", where, None)
            if told is not None and self._out.can_be_late:
                self._starting[job.id] = told

    def job_ended(self, job: Job, verdict: Verdict | None, seconds: float) -> None:
        self._starting.pop(job.id, None)
        if verdict is None or verdict.kind != "retry" or job.task not in self._tasks:
            return
        if job.failures + 1 < job.max_attempts and verdict.failure is not None:
            error, trace = of_failure(verdict.failure), verdict.failure.traceback or None
            self._note(job, "RETRY", error, trace)

    def _note(
        self, job: Job, state: str, result: dict[str, Any], trace: str | None
    ) -> Future[None] | None:
        call = msgspec.convert(msgspec.json.decode(job.payload)["call"], Call)
        if call.ignore:
            return None
        return self._out.note(canvas.under_way(call, state, result, trace, self._now()))

    # -- what is sent

    def sender(self, name: str, queue: str | None) -> Sender:
        """Calls of a task that Celery's workers run. Raises ``ConfigurationError``."""
        place = queue or self._route(name)
        if place in self.queues and name not in self.jobs.names:
            raise ConfigurationError(
                f"app.celery({name!r}): it would be sent to {place!r}, which this app takes from "
                "itself; give queue= or routes= a queue that Celery's workers have, or let "
                "celery_tasks take from another one"
            )
        return Sender(self._send, name, queue or "")

    def _route(self, name: str) -> str:
        """The Celery queue for calls of a task of which nobody said it."""
        if name in self.jobs.names and self.queues:
            return self.queues[0]
        for pattern, queue in self._routes.items():
            if fnmatchcase(name, pattern):
                return queue
        return CELERY

    @property
    def _out(self) -> Sending:
        if self._sending is None:
            backend: Backend | None = None
            if self._open_backend is not None:
                backend = self._open_backend()
            broker: Broker = self._open_broker()
            self._sending = Sending(broker, backend, self._route)
        return self._sending

    async def _tell(self, end: dict[str, Any]) -> None:
        await self._out.tell(msgspec.convert(end, End))

    async def _deliver(self, call: dict[str, Any]) -> None:
        made = msgspec.convert({**call, "id": current().id}, Call)
        await self._out.tell(End(calls=[made]))

    async def _refuse(self, message: dict[str, Any]) -> None:
        """Ends badly, which keeps the message's bytes among the dead, with the reason."""
        error = Refused(f"{message['why']} (queue {message['queue']})")
        if isinstance(message.get("id"), str):
            call = Call(id=message["id"], task="", reply_to=message.get("reply_to"))
            self._failed(call, error)
        raise error

    # -- beside each worker

    def worker_started(self, worker: str, queues: Sequence[str], tasks: Sequence[str]) -> None:
        if self.queues and self.jobs.names and self._lines & set(queues):
            intake = Intake(self, self._out.broker)
            self._intakes[worker] = intake
            intake.start()

    def worker_stopping(self, worker: str) -> None:
        intake = self._intakes.get(worker)
        if intake is not None:
            intake.stop()

    async def worker_ending(self, worker: str) -> None:
        intake = self._intakes.get(worker)
        if intake is not None:
            await intake.ended()

    def worker_stopped(self, worker: str) -> None:
        self._intakes.pop(worker, None)

    async def app_closed(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            await sending.close()


def _model(task: Task[..., Any]) -> Job:
    return task.options.job(task.name)
