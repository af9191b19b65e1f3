"""Instead of Celery: a program of Celery's runs on outlast when one import is changed.

    from outlast.contrib.celery.compat import Celery

Calls are jobs in an outlast store, and ``outlast worker MODULE:APP`` runs them. What differs is
listed in docs/celery.md.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from outlast import Outlast, RetryPolicy, current
from outlast.chance import SystemChance
from outlast.contrib.celery.canvas import (
    Signature,
    chain,
    chord,
    chunks,
    group,
    signature,
    starmap,
    xmap,
)
from outlast.contrib.celery.flow import (
    ACCUMULATE,
    CHORD,
    LOOK,
    MEMBERS_KEPT,
    Place,
    freeze,
    jobs_of,
    when_complete,
)
from outlast.contrib.celery.registry import current_app, join, shared_task
from outlast.contrib.celery.results import (
    Absent,
    AsyncResult,
    Control,
    EagerResult,
    GroupResult,
    TaskRevokedError,
    members_of,
    value_of,
)
from outlast.contrib.celery.settings import Settings
from outlast.contrib.celery.tasks import (
    FOR_CALLS,
    GRANTED,
    NEVER,
    REFUSED,
    ChordError,
    Ignore,
    MaxRetriesExceededError,
    Reject,
    Request,
    Retry,
    Task,
    perform,
    seconds_until,
)
from outlast.contrib.celery.values import plain
from outlast.errors import ConfigurationError, Snooze, Unsupported
from outlast.job import DAY
from outlast.store import Feature
from outlast.task import Call, default_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from outlast.job import Job
    from outlast.store import Ledger

__all__ = [
    "AsyncResult", "Celery", "ChordError", "EagerResult", "GroupResult", "Ignore",
    "MaxRetriesExceededError", "Reject", "Request", "Retry", "Signature", "Task",
    "TaskRevokedError", "TimeoutError", "chain", "chord", "chunks", "current_app",
    "get_task_logger", "group", "shared_task", "signature", "starmap", "subtask", "xmap",
]  # fmt: skip

TimeoutError = TimeoutError
subtask = signature
SCHEMES = ("sqlite:", "postgres", "redis", "memory:", "valkey")
HOUR = 3600.0


def get_task_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


class Engine(Outlast):
    """The outlast app below a ``Celery``: what ``outlast worker`` is given."""

    def __init__(self, celery: Celery, url: str | None) -> None:
        self._celery = celery
        super().__init__(url)

    @property
    def tasks(self) -> Mapping[str, Any]:
        self._celery.load()
        return super().tasks

    def ask(self, question: Callable[[Ledger], Coroutine[Any, Any, Any]]) -> Any:
        """Ask the store from a thread without an event loop."""
        return self._desk.ask(question, "await asyncio.to_thread(...) for it")

    @property
    def coalesces(self) -> bool:
        """Whether the store that is open has keys that are held only while queued."""
        found = self._access.opened
        return found is not None and Feature.REPEATS in found.features


class Celery:
    """Holds tasks, as Celery's own class does; below it is ``outlast``, an ``Outlast``.

    The store is what ``OUTLAST_URL`` names, else ``broker``, if that is a URL of a store. What
    Celery has and this does not raises ``Unsupported``, saying what to use.
    """

    def __init__(
        self, main: str | None = None, broker: str | None = None, backend: Any = None,
        include: Any = (), set_as_current: bool = True, task_cls: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        self.main = main
        self.conf = Settings()
        self.conf.include = (include,) if isinstance(include, str) else tuple(include or ())
        if "config_source" in options:
            self.conf.read(options.pop("config_source"))
        if options:
            raise Unsupported(f"Celery(... {', '.join(options)}) has no meaning here")
        if broker is not None:
            self.conf.broker_url = broker
        if backend is not None:
            self.conf.result_backend = backend
        self.Task: type[Task] = task_cls or Task
        self._registry: dict[str, Task] = {}
        self._loaded = False
        self._engine: Engine | None = None
        self._making = threading.RLock()
        self._waiting: list[Task] = []
        self.control = Control(self)
        for word, call in (
            ("celery.map", _each), ("celery.starmap", _spread), (ACCUMULATE, _gathered),
        ):  # fmt: skip
            self.task(name=word)(call)
        if set_as_current:
            join(self)

    def __repr__(self) -> str:
        return f"<Celery {self.main or '__main__'} on outlast>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Absent(f"app.{name} is not there on outlast; docs/celery.md says what to use")

    @property
    def outlast(self) -> Engine:
        """The outlast app below; made when it is first needed, so that settings may come first."""
        if self._engine is None:
            with self._making:
                if self._engine is None:
                    self._engine = self._made()
        return self._engine

    def _made(self) -> Engine:
        """Whole before anybody sees it: threads ask at once."""
        url = None
        if not (os.environ.get("OUTLAST_URL") or os.environ.get("OUTLAST_URL_FILE")):
            url = self._broker()
        engine = Engine(self, url)
        self._look_after_chords(engine)
        for task in list(self._registry.values()):
            self._offer(engine, task)
        return engine

    def _broker(self) -> str:
        found = str(self.conf.broker_url or "")
        found = found.removeprefix("outlast+")
        if found.startswith(SCHEMES):
            return found
        raise ConfigurationError(
            f"broker {found.rpartition('@')[2] or found!r} is no store of outlast's: set "
            'OUTLAST_URL, for example to sqlite:///jobs.db, or write broker="sqlite:///jobs.db"'
        )

    # Tasks.

    @property
    def tasks(self) -> dict[str, Task]:
        return self._registry

    def gen_task_name(self, name: str, module: str) -> str:
        """The name of a task that was given none; to be overridden."""
        return f"{module}.{name}"

    def name_of(self, fn: Callable[..., Any]) -> str:
        """The name of the task that a function is to be."""
        module, _, name = default_name(fn).rpartition(".")
        return self.gen_task_name(name, module)

    def task(self, *args: Any, **options: Any) -> Any:
        """Make a task of a function, with or without options."""
        if len(args) == 1 and callable(args[0]) and not options:
            return self._task(args[0], {})
        if args:
            raise ConfigurationError("@app.task takes options by name alone")
        return lambda fn: self._task(fn, options)

    def _task(self, fn: Callable[..., Any], given: dict[str, Any]) -> Task:
        options = {name: value for name, value in given.items() if name not in GRANTED}
        name = options.pop("name", None) or self.name_of(fn)
        if name in self._registry:
            return self._registry[name]
        base = options.pop("base", None) or self.Task
        bind = options.pop("bind", False)
        _check_task(name, options)
        fields = {
            **options,
            "run": fn if bind else staticmethod(fn),
            "bound": bind,
            "__doc__": fn.__doc__,
            "__module__": fn.__module__,
            "__wrapped__": staticmethod(fn),
        }
        made = cast("Task", type(fn.__name__, (base,), fields)())
        functools.update_wrapper(made, fn, updated=())
        return self.register_task(made, name)

    def register_task(self, task: Any, name: str | None = None) -> Task:
        """Add a task that is a class of its own."""
        made: Task = task() if isinstance(task, type) else task
        made.app = self
        made.name = name or made.name or f"{type(made).__module__}.{type(made).__name__}"
        with self._making:
            self._registry[made.name] = made
            self._annotate(made)
            if self._engine is not None:
                self._offer(self._engine, made)
        return made

    def _annotate(self, task: Task) -> None:
        notes = self.conf.task_annotations
        for each in notes if isinstance(notes, list | tuple) else [notes] if notes else []:
            for found in (each.get("*"), each.get(task.name)):
                _check_task(task.name, found or {})
                for name, value in (found or {}).items():
                    setattr(task, name, value)

    def _offer(self, engine: Engine, task: Task) -> None:
        """Let workers know a task."""
        name = task.name

        def run(call: Any) -> Any:
            return perform(self, name, call)

        engine.task(
            name=name,
            retry=RetryPolicy(attempts=NEVER, on=(), delay=0.0),
            queue=self._queue({}, task),
        )(run)

    def load(self) -> None:
        """Import the modules that ``include`` and ``imports`` name; a worker does it."""
        if not self._loaded:
            self._loaded = True
            for module in (*self.conf.include, *(self.conf.imports or ())):
                importlib.import_module(module)

    def autodiscover_tasks(
        self, packages: Any = None, related_name: str = "tasks", force: bool = False
    ) -> None:
        """Have workers import ``PACKAGE.tasks`` of these packages, where there is one."""
        named = packages() if callable(packages) else packages
        if named is None:
            raise Unsupported("autodiscover_tasks() needs the names of the packages here")
        found = [f"{each}.{related_name}" for each in named]
        there = [each for each in found if importlib.util.find_spec(each) is not None]
        self.conf.include = (*self.conf.include, *there)
        if force or self._loaded:
            for module in there:
                importlib.import_module(module)

    def config_from_object(self, source: Any, silent: bool = False, **options: Any) -> None:
        if options.get("namespace"):
            raise Unsupported(
                "config_from_object(namespace=...): give a module of Celery's settings"
            )
        self.conf.read(source)

    def finalize(self, auto: bool = False) -> None:
        """Nothing is left to be done."""

    def set_default(self) -> None:
        join(self)

    set_current = set_default

    def add_periodic_task(self, *_: Any, **__: Any) -> None:
        raise Unsupported(
            "there are no schedules yet: start the calls from cron or a systemd timer"
        )

    def start(self, argv: Any = None) -> None:
        raise Unsupported("start workers by the command: outlast worker MODULE:APP")

    worker_main = start

    # Calls.

    def signature(self, *args: Any, **options: Any) -> Signature:
        return signature(*args, app=self, **options)

    def send_task(self, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Start a task that need not be registered here."""
        return self.signature(name, args, kwargs, **options).apply_async()

    def AsyncResult(self, id: str, **_: Any) -> AsyncResult:
        return AsyncResult(id, self)

    def GroupResult(self, id: Any, results: Any, **_: Any) -> GroupResult:
        return GroupResult(id, results, self)

    def start_flow(self, sig: Signature) -> Any:
        """Store the jobs that a signature begins with, all or none; what to ask for its result."""
        if self.conf.task_always_eager:
            return sig.apply()
        frozen = freeze(sig, SystemChance().uuid7)
        above = _above()
        place = Place(root=above[0], parent=above[1])
        jobs = jobs_of(frozen, place, self.make_job)
        engine = self.outlast
        model = engine.tasks[LOOK]
        engine.enqueue_many_sync([Call(job, model, job.id, job.payload) for job in jobs])
        return self._results(frozen)

    def _results(self, sig: Signature, parent: Any = None) -> Any:
        if isinstance(sig, chain):
            for step in sig.tasks:
                parent = self._results(step, parent)
            return parent
        if isinstance(sig, chord) and sig.body is not None:
            return self._results(sig.body, self._results(sig["kwargs"]["header"], parent))
        if isinstance(sig, group | chord):
            members = [self._results(one) for one in sig.tasks]
            return GroupResult(sig.id, members, self, parent)
        return AsyncResult(cast("str", sig.id), self, parent)

    def make_job(self, sig: Signature, message: dict[str, Any], place: Place) -> Job:
        """The job of one call."""
        task = self._registry.get(sig.task)
        options = sig.options
        unknown = FOR_CALLS & options.keys()
        if unknown:
            raise Unsupported(f"apply_async({unknown.pop()}=...) has no meaning here; use queue=")
        if options.get("serializer", "json") != "json":
            raise Unsupported("jobs are JSON, always; nothing stored is ever code")
        template = self.outlast.tasks[LOOK]
        late = seconds_until(options.get("eta") or options.get("countdown"))
        limit = seconds_until(options.get("expires", getattr(task, "expires", None)))
        model = template.using(
            delay=late or None,
            expires=limit,
            queue=self._queue(options, task, sig),
            priority=self._priority(options, task),
            timeout=options.get("time_limit") or self._limit(task),
        ).call(plain(message))
        keep = max(HOUR, seconds_until(self.conf.result_expires) or 100 * 365 * DAY)
        if place.chord is not None or sig.task == CHORD:
            keep = max(keep, MEMBERS_KEPT)
        job: Job = replace(
            model.job, id=cast("str", sig.id), task=sig.task, keep=keep, max_attempts=NEVER
        )
        if place.key is not None:
            return replace(job, key=place.key, keep_key=MEMBERS_KEPT)
        if sig.task == LOOK and self.outlast.coalesces:
            return replace(job, key=f"look-{message['of']}", key_queued=True)
        return job

    def _queue(self, options: Mapping[str, Any], task: Task | None, sig: Any = None) -> str:
        found = options.get("queue") or getattr(task, "queue", None)
        name = sig.task if sig is not None else getattr(task, "name", "")
        return str(found or _routed(self.conf.task_routes, name) or self.conf.task_default_queue)

    def _priority(self, options: Mapping[str, Any], task: Task | None) -> int:
        found = options.get("priority", getattr(task, "priority", None))
        return int(found if found is not None else self.conf.task_default_priority or 0)

    def _limit(self, task: Task | None) -> float | None:
        found = getattr(task, "time_limit", None)
        return found if found is not None else cast("float | None", self.conf.task_time_limit)

    def ignores(self, task: Task) -> bool:
        """Whether what the task returns is not kept."""
        own = task.ignore_result
        return bool(self.conf.task_ignore_result if own is None else own)

    # Chords.

    def _look_after_chords(self, engine: Engine) -> None:
        async def look(call: Any) -> None:
            """After the end of a member: is it the last?"""
            await self._complete(call["of"])

        async def keep(call: Any) -> None:
            """The chord itself: looks now and then for members that nobody tells of."""
            run = current()
            if not await self._complete(run.id):
                raise Snooze(min(HOUR, 60.0 * 2 ** min(run.attempt, 6)))

        policy = RetryPolicy(attempts=NEVER, delay=1.0, cap=60.0)
        engine.task(name=LOOK, retry=policy)(look)
        engine.task(name=CHORD, retry=policy)(keep)

    async def _complete(self, id: str) -> bool:
        """Start the body of a chord with this job's end, if its members have all ended."""
        ledger = cast("Ledger", self.outlast.store)
        (job,) = await ledger.get((id,))
        if job is None:
            return True
        plan = signature_of(job)
        members = await members_of([*plan["ids"], *plan["before"]], ledger)
        jobs = when_complete(id, plan, members, value_of, self.make_job)
        current().then = tuple(jobs)
        return bool(jobs)


def signature_of(job: Job) -> dict[str, Any]:
    """What a chord's own job holds."""
    from msgspec import json

    found: dict[str, Any] = json.decode(job.payload)["call"]
    return found


def _above() -> tuple[str | None, str | None]:
    """Root and parent of what is started here: the task that runs, if one does."""
    from outlast.contrib.celery.tasks import _request

    request = _request.get()
    return (None, None) if request is None else (request.root_id, request.id)


def _check_task(name: str, options: Mapping[str, Any]) -> None:
    for option, way in REFUSED.items():
        if options.get(option):
            raise Unsupported(f"task {name}: {option} is not supported: {way}")
    if options.get("serializer", "json") != "json":
        raise Unsupported(f"task {name}: jobs are JSON, always; nothing stored is ever code")


def _routed(routes: Any, name: str) -> str | None:
    """The queue that ``task_routes`` names for a task."""
    for each in routes if isinstance(routes, list | tuple) else [routes] if routes else []:
        if callable(each):
            raise Unsupported("task_routes as a function: use a dictionary, or queue= at the task")
        for pattern, target in each.items():
            if pattern == name or ("*" in pattern and _fits(pattern, name)):
                return cast("str", target if isinstance(target, str) else target["queue"])
    return None


def _fits(pattern: str, name: str) -> bool:
    from fnmatch import fnmatchcase

    return fnmatchcase(name, pattern)


def _each(task: Any, it: Any) -> Any:
    sig = signature(task)
    return [sig(item) for item in it]


def _gathered(*results: Any, index: int | None = None) -> Any:
    return results if index is None else results[index]


def _spread(task: Any, it: Any) -> Any:
    sig = signature(task)
    return [sig(*item) for item in it]
