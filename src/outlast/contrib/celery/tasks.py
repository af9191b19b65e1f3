"""Tasks as Celery's users write them, and one run of them: retries, handlers, what follows."""

from __future__ import annotations

import inspect
import logging
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from outlast import current
from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.contrib.celery.canvas import Signature, chunks, signature, starmap, xmap
from outlast.contrib.celery.flow import what_follows, what_follows_death, what_replaces
from outlast.contrib.celery.results import EagerResult
from outlast.contrib.celery.values import check_result, plain, restore
from outlast.errors import Cancel, OutlastError, Snooze, Unsupported
from outlast.errors import Retry as Again

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from outlast.job import Job

__all__ = [
    "ChordError", "Ignore", "MaxRetriesExceededError", "Reject", "Request", "Retry", "Task",
    "perform", "seconds_until",
]  # fmt: skip

log = logging.getLogger(__name__)

NEVER = 1_000_000_000
"""Attempts of a job: it is the task that says when it has retried often enough."""

GRANTED = {
    "acks_late", "acks_on_failure", "acks_on_failure_or_timeout", "acks_on_timeout", "compression",
    "lazy", "reject_on_worker_lost", "retry_on_worker_lost", "send_events", "shared",
    "store_errors_even_if_ignored", "track_started",
}  # fmt: skip
"""Options that change nothing here: it is so anyway, or makes no difference."""

REFUSED = {
    "rate_limit": "bound how many run at a time: outlast worker --concurrency",
    "soft_time_limit": "use time_limit, and look at outlast.current().cancelled in long loops",
    "pydantic": "hand over plain values, or use outlast's own tasks, which read annotations",
    "backend": "results are kept where the jobs are",
}
"""Options that are not there, and what to use."""

FOR_CALLS = {
    "connection", "producer", "exchange", "routing_key", "publisher", "stamped_headers",
    "soft_time_limit", "reply_to",
}  # fmt: skip


class Retry(Exception):
    """Raised by ``self.retry``: the job runs again later."""

    def __init__(
        self, message: str | None = None, exc: BaseException | None = None, when: float = 0
    ) -> None:
        super().__init__(message or (repr(exc) if exc else "the task is to be retried"))
        self.exc = exc
        self.when = when


class Ignore(Exception):
    """Raised by a task: no result is kept of this run."""


class Replaced(Ignore):
    """Raised by ``self.replace``: a signature runs in place of this job."""

    def __init__(self, sig: Any) -> None:
        super().__init__("replaced")
        self.sig = sig


class Reject(Exception):
    """Raised by a task: not this time. With ``requeue`` it is run again."""

    def __init__(self, reason: Any = None, requeue: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.requeue = requeue


class MaxRetriesExceededError(Exception):
    """A task asked for one retry more than it may have."""


class ChordError(Exception):
    """A member of a chord failed, so its body can't run."""


class Request:
    """What a running task knows of its call."""

    def __init__(self, **fields: Any) -> None:
        self.id: str | None = None
        self.args: Any = ()
        self.kwargs: Any = {}
        self.retries = 0
        self.called_directly = True
        self.is_eager = False
        self.root_id: str | None = None
        self.parent_id: str | None = None
        self.group: str | None = None
        self.headers: dict[str, Any] | None = None
        self.hostname: str | None = None
        self.delivery_info: dict[str, Any] = {}
        self.__dict__.update(fields)

    @property
    def correlation_id(self) -> str | None:
        return self.id

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    def __repr__(self) -> str:
        return f"<Context: {self.__dict__!r}>"


_request: ContextVar[Request | None] = ContextVar("outlast.celery.request", default=None)


class Task:
    """A task; subclass it, and name the class as ``base``, to give several the same behaviour."""

    app: Any = None
    name: str = ""
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_kwargs: ClassVar[dict[str, Any]] = {}
    retry_backoff: int | bool = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    ignore_result: bool | None = None
    typing: bool = True
    queue: str | None = None
    priority: int | None = None
    time_limit: float | None = None
    expires: Any = None
    serializer: str = "json"
    throws: tuple[type[BaseException], ...] = ()
    abstract = True
    bound = False
    Strategy = None
    MaxRetriesExceededError = MaxRetriesExceededError

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The body of the task."""
        raise TypeError(f"task {self.name!r} has no run()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<@task: {self.name} of {self.app.main}>"

    def __reduce__(self) -> Any:
        return _named, (self.name,)

    @property
    def request(self) -> Any:
        found = _request.get()
        return Request() if found is None else found

    # What users may override.

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Before each run."""

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        """After a run that returned."""

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """After a run that is to be repeated."""

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """After a run that failed for good."""

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """After every run."""

    # Calls.

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Store a call, durably, and come back."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if self.typing:
            self._check(args or (), kwargs or {})
        return self.signature(args, kwargs, **options).apply_async()

    def _check(self, args: Any, kwargs: Any) -> None:
        """``TypeError`` for arguments that the function doesn't take."""
        inspect.signature(self.run).bind(*args, **kwargs)

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> EagerResult:
        """Run it here, retries included, and keep what becomes of it."""
        id, retries = options.get("task_id") or SystemChance().uuid7(), options.get("retries", 0)
        while True:
            request = Request(
                id=id, args=args, kwargs=kwargs, retries=retries, called_directly=False,
                is_eager=True,
            )  # fmt: skip
            token = _request.set(request)
            try:
                return EagerResult(id, self(*(args or ()), **(kwargs or {})), "SUCCESS")
            except Retry:
                retries += 1
            except Exception as error:
                if options.get("throw"):
                    raise
                return EagerResult(id, error, "FAILURE")
            finally:
                _request.reset(token)

    def signature(self, args: Any = None, kwargs: Any = None, **options: Any) -> Signature:
        immutable = options.pop("immutable", False)
        return Signature(self, args, kwargs, options, app=self.app, immutable=immutable)

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        return self.signature(args, kwargs, immutable=True)

    def map(self, it: Iterable[Any]) -> xmap:
        return xmap(self.s(), it)

    def starmap(self, it: Iterable[Any]) -> starmap:
        return starmap(self.s(), it)

    def chunks(self, it: Iterable[Any], n: int) -> chunks:
        return chunks(self.s(), it, n)

    def AsyncResult(self, id: str) -> Any:
        return self.app.AsyncResult(id)

    # Inside a run.

    def retry(
        self, args: Any = None, kwargs: Any = None, exc: BaseException | None = None,
        throw: bool = True, eta: datetime | None = None, countdown: float | None = None,
        max_retries: int | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Run this job again later; raises, so nothing comes after it.

        Raises ``exc``, or ``MaxRetriesExceededError``, if it was retried ``max_retries`` times.
        """
        request = self.request
        if request.called_directly:
            raise exc or RuntimeError("self.retry() is there only while a worker runs the task")
        if args is not None or kwargs is not None or options:
            raise Unsupported(
                "retry() runs the same call again: for other arguments or options, start a new one "
                "with apply_async()"
            )
        most = self.max_retries if max_retries is None else max_retries
        if most is not None and request.retries >= most:
            raise exc or MaxRetriesExceededError(
                f"Can't retry {self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}"
            )
        if eta is not None:
            countdown = max(0.0, eta.astimezone().timestamp() - SystemClock().now())
        again = Retry(exc=exc, when=self.default_retry_delay if countdown is None else countdown)
        if throw:
            raise again from exc
        return again

    def replace(self, sig: Any) -> Any:
        """Have this signature run in place of this job; raises, so nothing comes after it.

        Who waits for this job gets its result, and what follows this job follows it.
        """
        request = self.request
        if request.called_directly:
            raise RuntimeError("self.replace() is there only while a worker runs the task")
        if request.is_eager:
            return sig.apply().get()
        raise Replaced(sig)

    def add_to_chord(self, sig: Any, lazy: bool = False) -> NoReturn:
        raise Unsupported("add_to_chord() is not supported: a chord's members are known beforehand")

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None
    ) -> None:
        """Tell how far the job is; shown by ``AsyncResult.state`` and ``.info`` while it runs."""
        if self.request.called_directly or self.request.is_eager:
            return
        if task_id not in (None, self.request.id):
            raise Unsupported("update_state() speaks of the job that runs, and no other")
        from msgspec import json

        current().progress(None, json.encode({"state": state, "meta": plain(meta)}).decode())


def _named(name: str) -> Any:
    from outlast.contrib.celery.registry import current_app

    return current_app().tasks[name]


def perform(app: Any, name: str, message: dict[str, Any]) -> Any:
    """One run of a job of a worker's: what its task returns, as plain values."""
    run = current()
    task = app.tasks[name]
    request = Request(
        id=run.id, retries=run.failures, called_directly=False, hostname="outlast",
        root_id=message.get("root") or run.id, parent_id=message.get("parent"),
        group=message.get("group"), headers=message.get("headers"),
        args=restore(message.get("args", [])), kwargs=restore(message.get("kwargs", {})),
        delivery_info={"routing_key": run.queue},
    )  # fmt: skip
    token = _request.set(request)
    if run.timeout is not None:
        # When its time is up nobody asks the task any more.
        late = TimeoutError(f"it took more than {run.timeout:g} s")
        run.then_dead = _after_death(app, run.id, message, late)
    try:
        value, then = _followed(app, task, request, message)
    except Retry as again:
        _tell(task.on_retry, again.exc or again, request, again)
        _after(task, "RETRY", again, request, again)
        raise Again(again.when, str(again)) from again.exc
    except Reject as no:
        if no.requeue:
            raise Snooze(1.0) from no
        raise Cancel(f"rejected: {no.reason}") from no
    except Ignore:
        return None
    except (Cancel, Snooze, Again):
        raise
    except Exception as error:
        run.then_dead = _after_death(app, run.id, message, error)
        _tell(task.on_failure, error, request, error)
        _after(task, "FAILURE", error, request, error)
        raise
    finally:
        _request.reset(token)
    run.then = tuple(then)
    return value


def _followed(
    app: Any, task: Task, request: Request, message: dict[str, Any]
) -> tuple[Any, Sequence[Job]]:
    """What the run gives, and what is to be stored with it."""
    id = request.id or ""
    try:
        value = plain(_called(task, request, message))
    except Replaced as other:
        return what_replaces(id, message, signature(other.sig), app.make_job)
    check_result(value)
    then = what_follows(id, message, value, app.make_job)
    return None if app.ignores(task) and not message.get("chord") else value, then


def _after_death(app: Any, id: str, message: dict[str, Any], error: Exception) -> tuple[Job, ...]:
    if not (message.get("errbacks") or message.get("chord")):
        return ()
    shown = _shown(error)
    try:
        return tuple(what_follows_death(id, message, shown, app.make_job))
    except Exception:
        log.exception("job %s: its link_error can't be started", id)
        rest = {name: value for name, value in message.items() if name != "errbacks"}
        return tuple(what_follows_death(id, rest, shown, app.make_job))


def _called(task: Task, request: Request, message: dict[str, Any]) -> Any:
    if "failed" in message:
        raise ChordError(message["failed"])
    args, kwargs = request.args, request.kwargs
    if "error" in message:
        args = _errback_args(task, message["error"], args)
    task.before_start(request.id or "", args, kwargs)
    try:
        value = task(*args, **kwargs)
    except (Retry, Ignore, Reject, OutlastError, Cancel, Snooze, Again):
        raise
    except Exception as error:
        if not isinstance(error, task.autoretry_for) or isinstance(error, task.dont_autoretry_for):
            raise
        options = dict(task.retry_kwargs)
        if task.retry_backoff:
            options["countdown"] = _backoff(task, request.retries)
        task.retry(exc=error, **options)
        raise AssertionError("retry raises") from error
    task.on_success(value, request.id or "", args, kwargs)
    _after(task, "SUCCESS", value, request, None)
    return value


def _backoff(task: Task, retries: int) -> float:
    longest = min(task.retry_backoff_max, int(task.retry_backoff) * 2**retries)
    return longest * SystemChance().random() if task.retry_jitter else float(longest)


def _errback_args(task: Task, error: dict[str, Any], args: Any) -> Any:
    """Celery's two kinds of errbacks: those that take (request, exc, traceback), and an id."""
    from outlast.contrib.celery.results import rebuilt

    takes = [
        one
        for one in inspect.signature(task.run).parameters.values()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if len(takes) - len(args) >= 3:
        request = Request(id=error["id"], called_directly=False)
        exc = rebuilt(task.app, error["type"], error["message"])
        return [request, exc, error["traceback"], *args]
    return [error["id"], *args]


def _shown(error: BaseException) -> dict[str, Any]:
    from outlast.failing import describe

    failure = describe(error)
    return {
        "type": failure.type,
        "message": failure.message,
        "traceback": failure.traceback,
    }


def _tell(
    handler: Callable[..., Any], exc: BaseException, request: Request, einfo: BaseException
) -> None:
    handler(exc, request.id, request.args, request.kwargs, einfo)


def _after(task: Task, status: str, value: Any, request: Request, einfo: Any) -> None:
    task.after_return(status, value, request.id or "", request.args, request.kwargs, einfo)


def seconds_until(moment: datetime | float | timedelta | None) -> float | None:
    """From now until then; a number counts from now."""
    if moment is None or isinstance(moment, int | float):
        return moment
    if isinstance(moment, timedelta):
        return moment.total_seconds()
    return max(0.0, moment.astimezone().timestamp() - SystemClock().now())
