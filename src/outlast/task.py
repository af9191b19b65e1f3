"""A registered function: it runs where it is called, and `enqueue` has it run later, elsewhere."""

from __future__ import annotations

import inspect
import sys
from functools import update_wrapper
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, Self, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from outlast.errors import ConfigurationError
from outlast.job import Job
from outlast.limits import check_name
from outlast.options import call_fields, kept_with_key, needs, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime, timedelta

    from outlast.codec import Signature
    from outlast.handle import Handle
    from outlast.job import OnRepeat
    from outlast.options import KeepKey, KeyOf, Lane, TaskOptions
    from outlast.retry import RetryPolicy

__all__ = [
    "AsyncTask",
    "Call",
    "Outlet",
    "SyncTask",
    "Task",
    "default_name",
    "kind_of",
    "place_of",
    "same_place",
]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Kind = Literal["async", "thread", "process"]


class Outlet(Protocol):
    """Where a task's calls go: the app, seen from below."""

    async def submit(self, calls: Sequence[Call[T]]) -> list[Handle[T]]:
        """Store the calls, all or none, durable when this returns."""
        ...

    async def submit_one(self, call: Call[T]) -> Handle[T]:
        """The same for one call of a task whose outlet this is."""
        ...

    def submit_sync(self, calls: Sequence[Call[T]]) -> list[Handle[T]]:
        """The same from a thread without an event loop."""
        ...

    def check(self, task: Task[..., Any]) -> None:
        """``Unsupported`` if the store is known and can't do what such calls need."""
        ...

    def new_id(self) -> str:
        """An id for a new job."""
        ...


class Call(Struct, Generic[R_co], eq=False, gc=False):
    """One call of a task as a job that is not stored yet, for ``app.enqueue_many``.

    Its id is fixed, so storing it twice is one job.
    """

    __module__ = "outlast"

    model: Job
    task: Task[..., R_co]
    id: str
    payload: bytes

    @property
    def job(self) -> Job:
        """The job as it will be stored: the model, with an id and a payload of its own."""
        return _replace(self.model, id=self.id, payload=self.payload)

    def __repr__(self) -> str:
        return f"<Call {self.model.task} {self.id}>"


class Task(Generic[P, R_co]):
    """What ``@app.task`` makes of a function.

    Calling it runs the function here and now, as without the decorator. ``enqueue`` stores the
    call instead, and a worker runs it.
    """

    __module__ = "outlast"
    __name__: str
    __qualname__: str

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str,
        kind: Kind,
        signature: Signature,
        options: TaskOptions,
        outlet: Outlet,
    ) -> None:
        update_wrapper(self, fn)
        self.fn = fn
        self.name = name
        self.kind: Kind = kind
        self.signature = signature
        self.options = options
        self.decode_result: Callable[[bytes], R_co] = signature.decode_result
        self.outlet = outlet
        self._new_id = outlet.new_id
        lane = options.lane if callable(options.lane) else None
        self._bind(options.job(name), lane, options.key)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here, without the queue."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name}({', '.join(inspect.signature(self.fn).parameters)})>"

    def __reduce__(self) -> str:
        # By name, like the function it stands for: so a process pool can be handed a task.
        return self.fn.__qualname__

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Store this call; the job is durable when this returns.

        Raises ``EncodeError`` naming the parameter if the arguments don't fit the signature or
        can't be stored unchanged, ``KeyConflict`` if the key belongs to a call with other
        arguments, ``StoreClosed`` outside of ``async with app``, and ``EnqueueUncertain`` if the
        job may or may not be stored. Cancelled in the middle, it is stored or it is not. What
        shall be repeated safely after that gets a ``key``, or is made with ``call`` first.

        >>> handle = await send_receipt.enqueue(42, to="a@b.example")
        """
        return await self.outlet.submit_one(self.call(*args, **kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """The same for synchronous callers, from any thread, with no app to open first.

        Raises ``RuntimeError`` in a thread whose event loop is running: await ``enqueue`` there.
        """
        (handle,) = self.outlet.submit_sync((self.call(*args, **kwargs),))
        return handle

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Check and encode the arguments without storing anything.

        Raises ``EncodeError`` naming the parameter.

        >>> await app.enqueue_many([send_receipt.call(n, to=who) for n, who in orders])
        """
        payload = self.signature.encode(args, kwargs)
        template = self._template
        if not self._plain:
            key, lane = template.key, template.lane
            if self._key is not None:
                key = self._text_of("key", self._key, args, kwargs)
            if self._lane is not None:
                lane = self._text_of("lane", self._lane, args, kwargs)
            template = _replace(
                template,
                key=key,
                digest=b"" if key is None else self.signature.digest(payload),
                keep=template.keep if key is None else kept_with_key(template),
                lane=lane,
            )
        return Call(template, self, self._new_id(), payload)

    def using(
        self,
        *,
        delay: float | timedelta | UnsetType | None = UNSET,
        at: datetime | UnsetType | None = UNSET,
        expires: float | timedelta | datetime | UnsetType | None = UNSET,
        priority: int | UnsetType = UNSET,
        queue: str | UnsetType = UNSET,
        key: str | KeyOf | UnsetType | None = UNSET,
        keep_key: KeepKey | UnsetType = UNSET,
        on_repeat: OnRepeat | UnsetType = UNSET,
        lane: Lane | UnsetType = UNSET,
        timeout: float | timedelta | UnsetType | None = UNSET,
        retry: RetryPolicy | int | UnsetType = UNSET,
        keep: float | timedelta | UnsetType | None = UNSET,
        headers: Mapping[str, str] | UnsetType = UNSET,
    ) -> Self:
        """The same task with other options for the calls made through what this returns.

        ``delay`` counts from the moment the job is stored, by the store's clock; ``at`` is an
        aware datetime. ``expires`` says when a job that has not started is cancelled. Durations
        are seconds or timedeltas. ``key`` makes the call idempotent: while a job of this task with
        this key is live or remembered, enqueueing it again answers with that job; ``keep_key`` and
        ``on_repeat`` are those of ``app.task``. Headers are added to the task's own. ``None`` takes
        back what the task or an earlier ``using`` set.

        Raises ``ConfigurationError`` naming the option, and ``Unsupported`` if the app's store
        can't do that.

        >>> await send_receipt.using(delay=60, key="receipt-42").enqueue(42, to="a@b.example")
        """
        given = {
            name: value
            for name, value in (
                ("delay", delay), ("at", at), ("expires", expires), ("priority", priority),
                ("queue", queue), ("key", key), ("keep_key", keep_key), ("on_repeat", on_repeat),
                ("lane", lane), ("timeout", timeout), ("retry", retry), ("keep", keep),
                ("headers", headers),
            )
            if value is not UNSET
        }  # fmt: skip
        template = _replace(
            self._template, **call_fields(self._template, self.options.retry, given)
        )
        bound = object.__new__(type(self))
        bound.__dict__.update(self.__dict__)
        bound._bind(
            template,
            self._lane if lane is UNSET else lane if callable(lane) else None,
            self._key if key is UNSET else key if callable(key) else None,
        )
        return bound

    def policy(self, job: Job) -> RetryPolicy:
        """The retry policy for a job of this task: its call's own, if it was given one.

        Raises ``DecodeError`` if what the job carries can't be read.
        """
        return policy_of(job, self.options.retry)

    def _text_of(
        self,
        what: str,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> str | None:
        text = fn(*args, **kwargs)
        if text is None or isinstance(text, str):
            return text
        raise ConfigurationError(
            f"task {self.name!r}: its {what}= function gave {text!r}, which is no text"
        )

    def _bind(
        self, template: Job, lane: Callable[..., str | None] | None, key: KeyOf | None
    ) -> None:
        self._template = template
        self._lane = lane
        self._key = key
        self._plain = template.key is None and lane is None and key is None
        self.needs = needs(template, lane=lane is not None, key=key is not None)
        self.outlet.check(self)

    @property
    def timeout(self) -> float | None:
        """How long one run may last, in seconds."""
        return self._template.timeout


class AsyncTask(Task[P, R_co]):
    """A task made of a coroutine function: it runs in the worker's event loop."""

    __module__ = "outlast"

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class SyncTask(Task[P, R_co]):
    """A task made of a plain function: it runs in a thread of the worker, or in a process."""

    __module__ = "outlast"

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


_replace = msgspec.structs.replace


def kind_of(fn: Callable[..., Any], processes: bool) -> Kind:
    """Where a function runs. Raises ``ConfigurationError`` for what can't be a task."""
    shown = getattr(fn, "__qualname__", None) or repr(fn)
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        raise ConfigurationError(f"{shown}: a task is a function made with def or async def")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(f"{shown}: it yields, and a task returns its result once")
    if inspect.isfunction(fn) and next(iter(inspect.signature(fn).parameters), "") == "self":
        raise ConfigurationError(f"{shown}: a method can't be a task, since self is not stored")
    if not inspect.iscoroutinefunction(fn):
        return "process" if processes else "thread"
    if processes:
        raise ConfigurationError(
            f"{shown}: processes=True is for plain functions; this one is async def and runs in "
            "the worker's event loop"
        )
    return "async"


def default_name(fn: Callable[..., Any]) -> str:
    """The name under which the program and the worker know a function: its module and its own.

    A script that runs as ``__main__`` goes by the name under which a worker imports it. Raises
    ``ConfigurationError`` if no legal name comes of it.
    """
    name = f"{_module_name(fn.__module__)}.{fn.__qualname__.replace('.<locals>', '')}"
    try:
        check_name(name, "task")
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}; give the task one with name=") from None
    return name


def _module_name(module: str) -> str:
    if module not in ("__main__", "__mp_main__"):
        return module
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else module


def same_place(old: Callable[..., Any], new: Callable[..., Any]) -> bool:
    """Whether a module was imported again, as a reload does, and not two functions share a name.

    A function made twice by one piece of code, in a loop or a factory, has the same code object;
    a module that ran again has a new one. Where there is no file, in an interactive session,
    typing a function again replaces it.
    """
    a, b = getattr(old, "__code__", None), getattr(new, "__code__", None)
    if a is None or b is None or a is b or old.__qualname__ != new.__qualname__:
        return False
    if old.__module__ == new.__module__ == "__main__" and not _has_file("__main__"):
        return True
    return (a.co_filename, a.co_firstlineno) == (b.co_filename, b.co_firstlineno)


def _has_file(module: str) -> bool:
    return getattr(sys.modules.get(module), "__file__", None) is not None


def place_of(fn: Callable[..., Any]) -> str:
    code = getattr(fn, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{fn.__module__}.{fn.__qualname__}{where}"
