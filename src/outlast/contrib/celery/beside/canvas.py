"""What the end of a call sets off: its result, callbacks, the next of a chain, its part of a chord.

Everything is told as values, made once, at the end of the run, and stored with that end: new
messages get ids that follow from the call's own, so that a repeat makes the same ones.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct, ValidationError, convert
from msgspec.structs import replace

from outlast.contrib.celery.beside.bodies import Refused
from outlast.contrib.celery.beside.errors import exception
from outlast.contrib.celery.beside.wire import Call

__all__ = [
    "End",
    "Part",
    "Result",
    "Size",
    "check",
    "failed",
    "following",
    "joined",
    "succeeded",
    "under_way",
]

SEED = uuid.UUID("6b7b3b0a-5f0f-4a53-9a3c-0f3a2c9f8f0e")
"""Ids of messages that the sender gave none are made from this and the id of what went before."""


class Result(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One document of Celery's result backend; ``reply_to`` where results are messages."""

    id: str
    document: Raw | dict[str, Any]
    reply_to: str | None = None


class Part(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """That a member of a chord's header has ended."""

    id: str
    group: str
    index: int | None
    state: str
    result: Raw | Any
    body: Any
    """The signature of what is called when all have ended."""
    parent: Call
    """Whose end it was."""


class Size(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many parts a chord has that is begun here."""

    group: str
    count: int
    shape: Any = None
    """How Celery notes a result of groups within groups; None if it is a plain list."""


class End(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is to be told when a call has ended."""

    results: list[Result] = []
    sizes: list[Size] = []
    calls: list[Call] = []
    parts: list[Part] = []

    @property
    def is_empty(self) -> bool:
        return not (self.results or self.sizes or self.calls or self.parts)


class _Made:
    """What is made so far while signatures are applied."""

    def __init__(self, parent: Call) -> None:
        self.parent = parent
        self.calls: list[Call] = []
        self.sizes: list[Size] = []
        self._ids = 0

    def new_id(self) -> str:
        self._ids += 1
        return str(uuid.uuid5(SEED, f"{self.parent.id}/{self.parent.retries}/{self._ids}"))


def succeeded(call: Call, value: Any, raw: Raw, done: str) -> End:
    """After a call that returned ``value``, which is ``raw`` as JSON, at the moment ``done``."""
    if call.callbacks is call.chain is call.chord is None:
        return End(results=[] if call.ignore else [_result(call, "SUCCESS", raw, None, done, [])])
    made = following(call, [value])
    results = []
    if not call.ignore:
        children = [[[one.id, None], None] for one in made.calls]
        results.append(_result(call, "SUCCESS", raw, None, done, children))
    return End(
        results=results, sizes=made.sizes, calls=made.calls, parts=_parts(call, "SUCCESS", raw)
    )


def under_way(
    call: Call, state: str, result: dict[str, Any], trace: str | None, now: str
) -> Result:
    """A state that is not the last: STARTED, or RETRY with the error."""
    return _result(call, state, result, trace, now, [])


def failed(call: Call, state: str, error: dict[str, Any], trace: str | None, done: str) -> End:
    """After a call that will not be tried again; ``error`` as Celery tells exceptions.

    What was chained to it fails with it, as Celery has it.
    """
    results = [] if call.ignore else [_result(call, state, error, trace, done, [])]
    parts = _parts(call, state, error)
    for step in call.chain or ():
        sig = _signature(step)
        options = sig.options
        if options.get("task_id"):
            heir = replace(
                call,
                id=str(options["task_id"]),
                group=options.get("group_id"),
                group_index=options.get("group_index"),
                parent=None,
            )
            if not call.ignore:
                results.append(_result(heir, state, error, trace, done, []))
            parts += _parts(replace(heir, chord=options.get("chord")), state, error)
    made = _Made(call)
    for errback in call.errbacks or ():
        _apply(_signature(errback), [call.id], made, {})
    return End(results=results, sizes=made.sizes, calls=made.calls, parts=parts)


def check(call: Call) -> None:
    """Raises ``Refused`` if not all that follows from a call can be read, whatever its end is."""
    following(call, [None])
    failed(call, "FAILURE", {}, None, "")
    if call.chord is not None:
        _apply(_signature(call.chord), [[]], _Made(call), {})


def following(call: Call, args: list[Any]) -> _Made:
    """The callbacks and the next step of a call that has returned."""
    made = _Made(call)
    for callback in call.callbacks or ():
        _apply(_signature(callback), args, made, {})
    if call.chain:
        *later, step = call.chain
        _apply(_signature(step), args, made, {"chain": later})
    return made


def joined(part: Part, members: Sequence[Any], shape: Any = None) -> End:
    """After the last part of a chord: its body, or its failure. ``members`` as Celery keeps them:
    ``[1, id, state, result]``; and the ``shape`` that was noted when it began, if one was.
    """
    body = _signature(part.body)
    made = _Made(replace(part.parent, id=part.group, retries=0))
    for _, id_, state, result in members:
        if state in ("FAILURE", "REVOKED"):
            return _broken(part, body, str(id_), result, made)
    values = [result for _, _, _, result in members]
    try:
        if shape is not None:
            values = _laid({str(id_): result for _, id_, _, result in members}, shape)
    except (KeyError, TypeError, ValueError, RecursionError):
        pass  # it isn't about these parts: they come in a row
    _apply(body, [values], made, {})
    return End(sizes=made.sizes, calls=made.calls)


def _laid(values: Mapping[str, Any], shape: Any) -> Any:
    """The results as Celery's own tuples have them: ``[[id, parent], children]``."""
    (id_, _), children = shape
    return values[id_] if children is None else [_laid(values, one) for one in children]


def _broken(part: Part, body: _Signature, id_: str, result: Any, made: _Made) -> End:
    shown = "an error"
    if isinstance(result, dict):
        said = ", ".join(repr(one) for one in result.get("exc_message") or ())
        shown = f"{result.get('exc_type')}({said})"
    error = exception("ChordError", f"Dependency {id_} raised {shown}", "celery.exceptions")
    call = replace(
        part.parent,
        id=str(body.options.get("task_id") or made.new_id()),
        task=body.task,
        callbacks=None,
        errbacks=_listed(body.options.get("link_error")),
        chain=_listed(body.options.get("chain")),
        chord=body.options.get("chord"),
        group=body.options.get("group_id"),
        group_index=body.options.get("group_index"),
        parent=None,
    )
    return failed(call, "FAILURE", error, None, "")


def _parts(call: Call, state: str, result: Any) -> list[Part]:
    if call.chord is None or call.group is None:
        return []
    bare = replace(call, args=[], kwargs={}, callbacks=None, errbacks=None, chain=None, chord=None)
    return [
        Part(
            id=call.id, group=call.group, index=call.group_index, state=state, result=result,
            body=call.chord, parent=bare,
        )
    ]  # fmt: skip


def _result(
    call: Call,
    state: str,
    result: Raw | dict[str, Any],
    trace: str | None,
    done: str,
    children: list[Any],
) -> Result:
    document: dict[str, Any] = {
        "status": state,
        "result": result,
        "traceback": trace,
        "children": children,
        "date_done": done or None,
        "task_id": call.id,
    }
    if call.group:
        document["group_id"] = call.group
    if call.parent:
        document["parent_id"] = call.parent
    return Result(id=call.id, document=document, reply_to=call.reply_to)


# -- signatures


class _Signature(Struct, frozen=True, kw_only=True):
    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}
    subtask_type: str | None = None
    immutable: bool = False


def _signature(told: Any) -> _Signature:
    """A signature as a message has it. Raises ``Refused``."""
    try:
        if not isinstance(told, Mapping):
            raise TypeError("it is no object")
        found = {name: value for name, value in told.items() if value is not None}
        return convert(found, _Signature)
    except (TypeError, ValueError) as error:
        raise Refused(f"a signature that can't be read: {error}") from None


def _apply(sig: _Signature, args: list[Any], made: _Made, given: dict[str, Any]) -> None:
    """Make the calls of a signature: as ``apply_async(args, **given)`` does in Celery."""
    how = _KINDS.get(sig.subtask_type or "", _apply_task)
    how(sig, args, made, given)


def _apply_task(sig: _Signature, args: list[Any], made: _Made, given: dict[str, Any]) -> None:
    options = sig.options | {name: one for name, one in given.items() if one is not None}
    parent = made.parent
    stamped = [name for name in _list(options.get("stamped_headers")) if isinstance(name, str)]
    stamps = {name: options[name] for name in stamped if name in options}
    chain = [*_list(given.get("chain")), *_list(sig.options.get("chain"))]
    call = {
        "id": str(options.get("task_id") or made.new_id()),
        "task": sig.task,
        "queue": _queue(options),
        "args": sig.args if sig.immutable else [*args, *sig.args],
        "kwargs": sig.kwargs,
        "callbacks": _listed(options.get("link")),
        "errbacks": _listed(options.get("link_error")),
        "chain": chain or None,
        "chord": options.get("chord"),
        "group": options.get("group_id"),
        "group_index": options.get("group_index"),
        "root": parent.root or parent.id,
        "parent": parent.id,
        "ignore": bool(options.get("ignore_result", False)),
        "reply_to": options.get("reply_to") or parent.reply_to,
        "priority": options.get("priority", parent.priority),
        "eta": _later(options),
        "expires": options.get("expires") if isinstance(options.get("expires"), str) else None,
        "timelimit": _limits(options),
        "stamps": stamps or None,
        "stamped": stamped or None,
    }
    try:
        made.calls.append(convert(call, Call, strict=False))
    except ValidationError as error:
        # Said now: a call that can't be read when it is to be sent would be tried for ever.
        raise Refused(f"a signature of {sig.task!r} that can't be sent: {error}") from None


def _apply_chain(sig: _Signature, args: list[Any], made: _Made, given: dict[str, Any]) -> None:
    steps = [_signature(one) for one in _list(sig.kwargs.get("tasks"))]
    if not steps:
        return
    # A group that is followed by something is the header of a chord with that as its body.
    merged: list[_Signature] = []
    for step in steps:
        if merged and merged[-1].subtask_type == "group":
            merged[-1] = _chord_of(merged[-1], step)
        else:
            merged.append(step)
    last = merged[-1]
    ends = {name: given.get(name) for name in ("chord", "group_id", "group_index")}
    options = {name: one for name, one in ends.items() if one is not None}
    for name in ("link", "link_error"):
        if sig.options.get(name):
            options[name] = [*_list(last.options.get(name)), *_list(sig.options[name])]
    if sig.options.get("task_id") and not last.options.get("task_id"):
        options["task_id"] = sig.options["task_id"]
    merged[-1] = replace(last, options=last.options | options)
    first, *rest = merged
    chain = [*_list(given.get("chain")), *(_told(one) for one in reversed(rest))]
    _apply(first, args, made, {"chain": chain or None})


def _apply_group(sig: _Signature, args: list[Any], made: _Made, given: dict[str, Any]) -> None:
    if given.get("chain"):
        # What follows a group waits for all of it.
        *later, body = given["chain"]
        _apply_chord(_chord_of(sig, _signature(body)), args, made, {**given, "chain": later})
        return
    group = str(sig.options.get("task_id") or made.new_id())
    chord = given.get("chord") or sig.options.get("chord")
    for index, task in enumerate(_unrolled(sig.kwargs.get("tasks"))):
        whole = group
        if chord is not None:
            # They are parts of what this group as a whole is one of. Where that is told to the
            # group as the body of a chord, it is the chord's own header; the members know better.
            known = (one.get("group_id") for one in (given, task.options, sig.options))
            whole = str(next(filter(None, known), group))
        _apply(task, args, made, {"group_id": whole, "group_index": index, "chord": chord})


def _apply_chord(sig: _Signature, args: list[Any], made: _Made, given: dict[str, Any]) -> None:
    header = sig.kwargs.get("header")
    body = _signature(sig.kwargs.get("body"))
    listed = header.get("kwargs", {}).get("tasks") if isinstance(header, Mapping) else header
    members = _unrolled(listed)
    options = dict(body.options)
    ends = {name: given.get(name) for name in ("chord", "group_id", "group_index")}
    options |= {name: one for name, one in ends.items() if one is not None}
    if given.get("chain"):
        options["chain"] = [*given["chain"], *_list(options.get("chain"))]
    for name in ("link", "link_error"):
        if sig.options.get(name):
            options[name] = [*_list(options.get(name)), *_list(sig.options[name])]
    if not options.get("task_id"):
        options["task_id"] = str(sig.options.get("task_id") or made.new_id())
    told = _told(replace(body, options=options))
    if not members:
        _apply(_signature(told), [[]], made, {})
        return
    named = header.get("options", {}).get("task_id") if isinstance(header, Mapping) else None
    group = str(named or made.new_id())
    tasks, shapes = _frozen(members, made, {"group_id": group, "chord": told})
    nested = any(children is not None for _, children in shapes)
    shape = [[group, None], shapes] if nested else None
    made.sizes.append(Size(group=group, count=sum(map(_count, tasks)), shape=shape))
    for index, task in enumerate(tasks):
        given = {"group_id": group, "group_index": index, "chord": told}
        _apply(task, args, made, given)


def _count(sig: _Signature) -> int:
    """How many parts a member of a chord's header counts for."""
    if sig.subtask_type == "group":
        return sum(map(_count, _unrolled(sig.kwargs.get("tasks"))))
    if sig.subtask_type == "chain":
        tasks = _list(sig.kwargs.get("tasks"))
        return _count(_signature(tasks[-1])) if tasks else 0
    if sig.subtask_type == "chord":
        return _count(_signature(sig.kwargs.get("body")))
    return 1


def _unrolled(tasks: Any) -> list[_Signature]:
    """Members of a group; those of a group in it in the order that Celery's own unrolling has."""
    waiting = deque(map(_signature, _list(tasks)))
    found = []
    while waiting:
        task = waiting.popleft()
        if task.subtask_type == "group":
            waiting.extendleft(map(_signature, _list(task.kwargs.get("tasks"))))
        else:
            found.append(task)
    return found


def _frozen(
    tasks: Sequence[_Signature], made: _Made, ends: dict[str, Any]
) -> tuple[Sequence[_Signature], Sequence[Any]]:
    """Members of a group in the header of a chord, and what Celery notes of their results.

    Whoever runs them, the tasks whose ends are parts know it, and have ids.
    """
    found = [_end(task, made, ends | {"group_index": at}) for at, task in enumerate(tasks)]
    return [task for task, _ in found], [shape for _, shape in found]


def _end(sig: _Signature, made: _Made, ends: dict[str, Any]) -> tuple[_Signature, Any]:
    kind, id_ = sig.subtask_type, sig.options.get("task_id")
    if kind == "chain" and (steps := _list(sig.kwargs.get("tasks"))):
        last, shape = _end(_heir(_signature(steps[-1]), id_), made, ends)
        return replace(sig, kwargs=sig.kwargs | {"tasks": [*steps[:-1], _told(last)]}), shape
    if kind == "chord":
        body, shape = _end(_heir(_signature(sig.kwargs.get("body")), id_), made, ends)
        return replace(sig, kwargs=sig.kwargs | {"body": _told(body)}), shape
    id_ = str(id_ or made.new_id())
    options = sig.options | ends | {"task_id": id_}
    if kind != "group":
        return replace(sig, options=options), [[id_, None], None]
    tasks, shapes = _frozen(_unrolled(sig.kwargs.get("tasks")), made, ends)
    kwargs = sig.kwargs | {"tasks": list(map(_told, tasks))}
    return replace(sig, options=options, kwargs=kwargs), [[id_, None], shapes]


def _heir(last: _Signature, id_: Any) -> _Signature:
    """The last of a whole has the id of the whole, if it has none of its own."""
    id_ = last.options.get("task_id") or id_
    return replace(last, options=last.options | {"task_id": id_}) if id_ else last


_KINDS = {"chain": _apply_chain, "group": _apply_group, "chord": _apply_chord}


def _chord_of(group: _Signature, body: _Signature) -> _Signature:
    kwargs = {"header": _told(group), "body": _told(body)}
    return _Signature(task="celery.chord", kwargs=kwargs, subtask_type="chord")


def _told(sig: _Signature) -> dict[str, Any]:
    """As a message has it."""
    return {
        "task": sig.task,
        "args": sig.args,
        "kwargs": sig.kwargs,
        "options": sig.options,
        "subtask_type": sig.subtask_type,
        "immutable": sig.immutable,
    }


def _list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _listed(value: Any) -> list[Any] | None:
    return _list(value) or None


def _queue(options: dict[str, Any]) -> str:
    """Where it says that it is to go; nothing if it does not."""
    queue = options.get("queue") or (not options.get("exchange") and options.get("routing_key"))
    if isinstance(queue, Mapping):
        queue = queue.get("name")
    return str(queue or "")


def _limits(options: dict[str, Any]) -> list[float | None] | None:
    limits = [options.get("time_limit"), options.get("soft_time_limit")]
    return None if limits == [None, None] else limits


def _later(options: dict[str, Any]) -> str | None:
    eta = options.get("eta")
    return eta if isinstance(eta, str) else None
