"""Signatures and what they are put together to: chains, groups, chords; as plain dictionaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from outlast.contrib.celery.registry import current_app
from outlast.errors import ConfigurationError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from outlast.contrib.celery.results import AsyncResult, GroupResult

__all__ = ["Signature", "chain", "chord", "chunks", "group", "read", "signature", "starmap", "xmap"]


class Signature(dict[str, Any]):
    """A call that is not made yet: its task's name, arguments and options."""

    kind: str | None = None

    def __init__(
        self,
        task: Any = None,
        args: Iterable[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        *,
        app: Any = None,
        immutable: bool = False,
        **more: Any,
    ) -> None:
        name = task if isinstance(task, str) else getattr(task, "name", None)
        super().__init__(
            task=name,
            args=tuple(args or ()),
            kwargs=dict(kwargs or {}),
            options={**(options or {}), **more},
            subtask_type=self.kind,
            immutable=immutable,
        )
        self._app = app if app is not None else getattr(task, "app", None)

    @property
    def app(self) -> Any:
        return self._app if self._app is not None else current_app()

    @property
    def task(self) -> str:
        return cast("str", self["task"])

    name = task

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self["args"])

    @property
    def kwargs(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self["kwargs"])

    @property
    def options(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self["options"])

    @property
    def immutable(self) -> bool:
        return bool(self["immutable"])

    @property
    def id(self) -> str | None:
        return self.options.get("task_id")

    @property
    def type(self) -> Any:
        """The task, which must be registered here."""
        return self.app.tasks[self.task]

    def __repr__(self) -> str:
        words = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        return f"{self.task}({', '.join(words)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it here and now."""
        full = self.merged(args, kwargs)
        return full.type(*full.args, **full.kwargs)

    def merged(
        self,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> Signature:
        """A copy with these arguments before its own, unless it is immutable."""
        copy = self.copy()
        if args and not self.immutable:
            copy["args"] = (*args, *self.args)
        if kwargs and not self.immutable:
            copy["kwargs"] = {**self.kwargs, **kwargs}
        copy["options"] = {**self.options, **(options or {})}
        return copy

    def copy(self) -> Signature:
        made = type(self).__new__(type(self))
        dict.update(made, self)
        made["options"] = dict(self.options)
        made["kwargs"] = dict(self.kwargs)
        made._app = self._app
        return made

    def clone(self, args: Iterable[Any] = (), kwargs: Any = None, **options: Any) -> Signature:
        return self.merged(args, kwargs, options)

    replace = clone

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        if immutable is not None:
            self["immutable"] = immutable
        self.options.update(options)
        return self

    def set_immutable(self, immutable: bool) -> None:
        self["immutable"] = immutable

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return self.app.start_flow(self.merged(tuple(args or ()), kwargs, options))

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Run it here, and return what a caller of ``apply_async`` would get to see."""
        full = self.merged(tuple(args or ()), kwargs, options)
        return full.type.apply(full.args, full.kwargs, **full.options)

    def link(self, callback: Signature) -> Signature:
        self.options.setdefault("link", [])
        self.options["link"] = [*_listed(self.options["link"]), callback]
        return callback

    def link_error(self, errback: Signature) -> Signature:
        self.options["link_error"] = [*_listed(self.options.get("link_error")), errback]
        return errback

    def on_error(self, errback: Signature) -> Signature:
        self.link_error(errback)
        return self

    def __or__(self, other: Any) -> Any:
        if isinstance(other, Signature):
            return chain(self, other, app=self._app)
        return NotImplemented

    def __invert__(self) -> Any:
        return self.apply_async().get()

    def __reduce__(self) -> Any:
        return read, (dict(self),)

    def stamp(self, *_: Any, **__: Any) -> None:
        raise Unsupported("stamps are not supported: pass headers={...} to apply_async")


def _listed(found: Any) -> list[Any]:
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


def read(given: Any, app: Any = None) -> Signature:
    """A signature from what JSON made of one."""
    if isinstance(given, Signature):
        return given
    kind: type[Signature] = _KINDS.get(given.get("subtask_type"), Signature)
    made = kind.__new__(kind)
    dict.update(made, given)
    made["args"] = tuple(given.get("args") or ())
    made["kwargs"] = dict(given.get("kwargs") or {})
    made["options"] = dict(given.get("options") or {})
    made["immutable"] = bool(given.get("immutable"))
    made["subtask_type"] = kind.kind
    made._app = app
    for name in ("tasks", "header"):
        if name in made["kwargs"] and not isinstance(made["kwargs"][name], Signature):
            found = made["kwargs"][name]
            made["kwargs"][name] = (
                read(found, app) if isinstance(found, dict) else [read(one, app) for one in found]
            )
    if isinstance(made["kwargs"].get("body"), dict) and kind is chord:
        made["kwargs"]["body"] = read(made["kwargs"]["body"], app)
    return made


def signature(task: Any, *args: Any, app: Any = None, **kwargs: Any) -> Signature:
    """``Signature(...)``, or what a dictionary holds."""
    if isinstance(task, dict):
        return read(task, app)
    return Signature(task, *args, app=app, **kwargs)


class chain(Signature):
    """One after the other, each with the result of the one before."""

    kind = "chain"

    def __init__(self, *tasks: Any, app: Any = None, **options: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Signature):
            tasks = tuple(tasks[0])
        super().__init__("celery.chain", options=options, app=app)
        steps: list[Signature] = []
        for task in tasks:
            _append(steps, task)
        self["kwargs"]["tasks"] = steps
        if app is None and steps:
            self._app = steps[0]._app

    @property
    def tasks(self) -> list[Signature]:
        return cast("list[Signature]", self["kwargs"]["tasks"])

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.apply_async(args, kwargs)

    def merged(self, args: Any = (), kwargs: Any = None, options: Any = None) -> Signature:
        copy = self.copy()
        steps = list(self.tasks)
        if (args or kwargs) and steps:
            steps[0] = steps[0].merged(args, kwargs)
        copy["kwargs"] = {"tasks": steps}
        copy["options"] = {**self.options, **(options or {})}
        return copy

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        first, *others = cast("chain", self.merged(tuple(args or ()), kwargs)).tasks
        result = first.apply()
        for step in others:
            result = step.apply((result.get(),))
        return result


def _append(steps: list[Signature], step: Signature) -> None:
    """Put one more step at the end, as ``|`` does."""
    if isinstance(step, chain):
        for one in step.tasks:
            _append(steps, one)
        return
    if isinstance(step, group) and len(step.tasks) == 1:
        step = step.tasks[0]
    last = steps[-1] if steps else None
    if isinstance(last, group):
        steps[-1] = chord(last, step, app=last._app)
    elif isinstance(last, chord):
        steps[-1] = last | step
    else:
        steps.append(step)


class group(Signature):
    """All of them, side by side."""

    kind = "group"

    def __init__(self, *tasks: Any, app: Any = None, **options: Any) -> None:
        if len(tasks) == 1 and not isinstance(tasks[0], Signature):
            tasks = tuple(tasks[0])
        elif len(tasks) == 1 and isinstance(tasks[0], group):
            tasks = tuple(tasks[0].tasks)
        super().__init__("celery.group", options=options, app=app)
        self["kwargs"]["tasks"] = list(tasks)
        if app is None and tasks:
            self._app = tasks[0]._app

    @property
    def tasks(self) -> list[Signature]:
        return cast("list[Signature]", self["kwargs"]["tasks"])

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.tasks))})"

    def __len__(self) -> int:
        return len(self.tasks)

    def __bool__(self) -> bool:
        return True

    def __call__(self, *args: Any, **options: Any) -> GroupResult:
        return cast("GroupResult", self.apply_async(args, **options))

    def merged(self, args: Any = (), kwargs: Any = None, options: Any = None) -> Signature:
        copy = self.copy()
        members = [one.merged(args, kwargs) if args or kwargs else one for one in self.tasks]
        copy["kwargs"] = {"tasks": members}
        copy["options"] = {**self.options, **(options or {})}
        return copy

    def skew(self, start: float = 1.0, stop: float | None = None, step: float = 1.0) -> group:
        """Give the members countdowns, one step further each."""
        for number, member in enumerate(self.tasks):
            late = start + number * step
            member.set(countdown=late if stop is None else min(late, stop))
        return self

    def set_immutable(self, immutable: bool) -> None:
        for member in self.tasks:
            member.set_immutable(immutable)

    def link(self, callback: Signature) -> Any:
        return [member.link(callback) for member in self.tasks]

    def link_error(self, errback: Signature) -> Any:
        return [member.link_error(errback) for member in self.tasks]

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        return chord(self, other, app=self._app)

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return self.app.GroupResult(
            None, [one.apply(args, kwargs, **options) for one in self.tasks]
        )


class chord(Signature):
    """A group, and a body that gets the list of its results."""

    kind = "chord"

    def __init__(self, header: Any, body: Any = None, *, app: Any = None, **options: Any) -> None:
        super().__init__("celery.chord", options=options, app=app)
        members = header if isinstance(header, group) else group(*_listed_header(header))
        self["kwargs"].update(header=members, body=body)
        if app is None and members.tasks:
            self._app = members.tasks[0]._app

    @property
    def tasks(self) -> list[Signature]:
        return cast("list[Signature]", self["kwargs"]["header"].tasks)

    @property
    def body(self) -> Signature | None:
        return cast("Signature | None", self["kwargs"]["body"])

    def __repr__(self) -> str:
        return f"chord([{', '.join(map(repr, self.tasks))}], {self.body!r})"

    def __call__(self, body: Signature | None = None, **options: Any) -> AsyncResult:
        full = self.copy()
        full["kwargs"]["body"] = body if body is not None else self.body
        return cast("AsyncResult", full.apply_async(**options))

    def merged(self, args: Any = (), kwargs: Any = None, options: Any = None) -> Signature:
        copy = self.copy()
        header = self["kwargs"]["header"].merged(args, kwargs)
        copy["kwargs"] = {"header": header, "body": self.body}
        copy["options"] = {**self.options, **(options or {})}
        return copy

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        copy = self.copy()
        copy["kwargs"]["body"] = other if self.body is None else self.body | other
        return copy

    def link(self, callback: Signature) -> Signature:
        if self.body is None:
            raise ConfigurationError("a chord without a body can't be linked to")
        copy = self.body.copy()
        copy.link(callback)
        self["kwargs"]["body"] = copy
        return callback

    def link_error(self, errback: Signature) -> Signature:
        if self.body is not None:
            copy = self.body.copy()
            copy.link_error(errback)
            self["kwargs"]["body"] = copy
        return errback

    def apply(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        results = self["kwargs"]["header"].apply(args, kwargs).get()
        return results if self.body is None else self.body.apply((results,))


def _listed_header(header: Any) -> Iterator[Any]:
    return iter([header] if isinstance(header, Signature) else list(header))


class xmap(Signature):
    """One job that calls a task with each item, one after the other."""

    word = "celery.map"

    def __init__(self, task: Signature, it: Iterable[Any], **options: Any) -> None:
        kwargs = {"task": task, "it": list(it)}
        super().__init__(self.word, (), kwargs, options, app=task._app, immutable=True)


class starmap(xmap):
    """The same with the arguments that each item holds."""

    word = "celery.starmap"


class chunks(group):
    """The items in pieces, each a job of its own."""

    def __init__(self, task: Signature, it: Iterable[Any], n: int, **options: Any) -> None:
        items = list(it)
        pieces = [items[at : at + n] for at in range(0, len(items), n)]
        super().__init__(*[starmap(task, piece) for piece in pieces], app=task._app, **options)

    def group(self) -> group:
        """As a group, to be skewed or to begin a chord."""
        return group(*self.tasks, app=self._app)


_KINDS: dict[Any, type[Signature]] = {"chain": chain, "group": group, "chord": chord}
