"""Steps of a run: pieces that are done once and remembered, and waits that hold no worker.

What a step returned is stored before the run goes on, by a write that compares the receipt. When
the job is run again, the step is not: what is stored is handed out instead. A sleep or a wait for
an event is a step too; while it lasts the job goes back to the store, and is run anew after it.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import types
import typing
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from outlast.clock import Clock
from outlast.codec import ItemCodec
from outlast.errors import LeaseLost, StepChanged, TaskError
from outlast.job import Step, Verdict
from outlast.joining import joined_here
from outlast.store import Feature, Stepping

if TYPE_CHECKING:
    from outlast.job import Claim
    from outlast.store import Store

__all__ = ["FOR_EVER", "Changed", "Keeper", "Parked", "Steps", "keeper_of", "seconds_of"]

T = TypeVar("T")

Changed = Literal["raise", "run"]
"""What to do about a step that was done with other arguments."""

FOR_EVER = 36525 * 86400.0
"""A century: how long a job waits for an event if nothing else is said, in seconds."""
MAX_NAME = 200

_TIMED_OUT = b""


class Parked(Struct, frozen=True):
    """Where a run stops for the time being: for ``delay`` seconds, or until the event is sent."""

    delay: float
    event: str | None = None


def _nothing(_: Verdict) -> None:
    """Nobody wants to be told."""


class Keeper(Struct):
    """Where the steps of a worker's jobs are kept, and the clock by which waits are measured.

    ``settled`` is told of a verdict that the run has stored itself. ``lease`` is in seconds.
    """

    store: Stepping
    clock: Clock
    lease: float = 15.0
    settled: Callable[[Verdict], None] = _nothing


class Steps:
    """The steps of one run of one job.

    ``park`` is called when the run is to end here; it doesn't return.
    """

    __slots__ = ("_claim", "_clock", "_counts", "_known", "_lost", "_park", "_read_at", "_store")

    def __init__(
        self,
        claim: Claim,
        keeper: Keeper,
        lost: Callable[[], bool],
        park: Callable[[Parked], Any],
    ) -> None:
        self._claim = claim
        self._store = keeper.store
        self._clock = keeper.clock
        self._lost = lost
        self._park = park
        self._counts: Counter[str] = Counter()
        self._known: dict[str, Step] | asyncio.Future[dict[str, Step]] | None = None
        self._read_at = 0.0

    def label(self, name: str) -> str:
        """The name under which the next step of that name is stored: it counts up.

        Raises ``TaskError`` for what is no name.
        """
        if not 0 < len(name) <= MAX_NAME or name[0] == "#":
            raise TaskError(
                f"step name {name!r:.80}: use a text of 1 to {MAX_NAME} characters that doesn't "
                "begin with #"
            )
        return self._count(name)

    def _count(self, name: str) -> str:
        self._counts[name] += 1
        return f"{name}#{self._counts[name]}"

    async def run(
        self, label: str, fn: Callable[..., Any], args: tuple[Any, ...], changed: Changed
    ) -> Any:
        """See ``Current.step``."""
        codec = codec_of(fn)
        mark = mark_of(args)
        step = (await self._recall()).get(label)
        if self._holds(step, label, mark, changed):
            return codec.decode(step.result)
        self._check()
        value = fn(*args)
        if inspect.isawaitable(value):
            value = await value
        await self._remember(Step(name=label, digest=mark, result=codec.encode(value)))
        return value

    def run_now(
        self, label: str, fn: Callable[..., T], args: tuple[Any, ...], changed: Changed
    ) -> T:
        """The same in a plain function; blocks."""
        codec = codec_of(fn)
        mark = mark_of(args)
        if not isinstance(self._known, dict):
            self._known = {step.name: step for step in self._store.recall_now(self._claim)}
        step = self._known.get(label)
        if self._holds(step, label, mark, changed):
            found: T = codec.decode(step.result)
            return found
        self._check()
        value = fn(*args)
        done = Step(name=label, digest=mark, result=codec.encode(value))
        within = joined_here(cast("Store", self._store))
        store = self._store.remember_now if within is None else within.remember_now
        if not store(self._claim, done):
            raise LeaseLost(self._refused(label))
        self._known[label] = done
        return value

    async def sleep(self, seconds: float) -> None:
        """See ``Current.sleep``."""
        label = self._count("#sleep")
        step = (await self._recall()).get(label)
        if step is None:
            await self._remember(Step(name=label, delay=seconds))
            left = seconds
        else:
            left = self._left(step)
        if left > 0:
            await self._park(Parked(left))

    async def wait(self, event: str, timeout: float | None) -> bytes:
        """See ``Current.wait_event``; the payload as it was sent."""
        label = self._count(f"#event:{event}")
        step = (await self._recall()).get(label)
        if step is not None and step.result is not None:
            return self._event(event, step.result)
        sent = await self._store.event(event)
        if sent is not None:
            await self._remember(Step(name=label, result=sent))
            return self._event(event, sent)
        left = FOR_EVER if timeout is None else timeout
        if step is None:
            await self._remember(Step(name=label, delay=left, event=event))
        else:
            left = self._left(step)
        if left <= 0:
            await self._remember(Step(name=label, result=_TIMED_OUT))
            return self._event(event, _TIMED_OUT)
        await self._park(Parked(left, event))
        raise AssertionError("a parked run went on")

    def _event(self, event: str, result: bytes) -> bytes:
        if result == _TIMED_OUT:
            raise TimeoutError(f"no event {event!r} was sent in time")
        return result

    async def _recall(self) -> dict[str, Step]:
        """All steps of the job that are stored; read once a run, however many ask at once."""
        known = self._known
        if isinstance(known, dict):
            return known
        if known is None:
            known = self._known = asyncio.ensure_future(self._read())
        try:
            # One that is cancelled while it waits must not take this from the others.
            found = await asyncio.shield(known)
        except BaseException:
            if known.done() and self._known is known:
                self._known = None
            raise
        self._known = found
        return found

    async def _read(self) -> dict[str, Step]:
        self._read_at = self._clock.monotonic()
        return {step.name: step for step in await self._store.recall(self._claim)}

    async def _remember(self, step: Step) -> None:
        within = joined_here(cast("Store", self._store))
        if within is not None:
            stored = await within.remember(self._claim, step)
        else:
            stored = await self._store.remember(self._claim, step)
        if not stored:
            raise LeaseLost(self._refused(step.name))
        if isinstance(self._known, dict):
            self._known[step.name] = step

    def _holds(
        self, step: Step | None, label: str, mark: bytes, changed: Changed
    ) -> typing.TypeGuard[Any]:
        """Whether what is stored is the answer. Raises ``StepChanged``."""
        if step is None or step.result is None:
            return False
        if step.digest == mark:
            return True
        if changed == "run":
            return False
        raise StepChanged(
            f"step {label} of job {self._claim.job.id} was done with other arguments, so its "
            "result is not the answer to this call. If the code has changed, give the step another "
            'name, or let it run again with changed="run"; if steps of one name run side by side, '
            "name each for what it is about"
        )

    def _check(self) -> None:
        if self._lost():
            raise LeaseLost(f"job {self._claim.job.id} may be another worker's by now")

    def _refused(self, label: str) -> str:
        return (
            f"step {label} of job {self._claim.job.id} was not stored: the job is another worker's "
            "by now, or has been settled"
        )

    def _left(self, step: Step) -> float:
        return (step.left or 0.0) - (self._clock.monotonic() - self._read_at)


def keeper_of(store: Store, clock: Clock, lease: float = 15.0) -> Keeper | None:
    """The store as one that keeps steps, if it can."""
    if Feature.STEPS not in store.features:
        return None
    return Keeper(cast("Stepping", store), clock, lease)


def seconds_of(duration: timedelta | float | None, **parts: float) -> float:
    """A duration given in either way, in seconds. Raises ``ValueError``."""
    if duration is not None and not parts:
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    elif duration is None and parts:
        seconds = timedelta(**parts).total_seconds()
    else:
        raise ValueError("give a duration: seconds, a timedelta, or parts such as hours=6")
    if not 0 <= seconds <= FOR_EVER:
        raise ValueError(f"{seconds!r} seconds: use a duration from 0 up to a century")
    return seconds


def mark_of(args: tuple[Any, ...]) -> bytes:
    """16 bytes that stand for the arguments; what is no data (a client, a lock) by its class."""
    try:
        data = msgspec.json.encode(args, enc_hook=_class_of, order="deterministic")
    except (TypeError, ValueError, OverflowError, RecursionError):
        data = msgspec.json.encode([_class_of(each) for each in args])
    return hashlib.blake2b(data, digest_size=16).digest()


def _class_of(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


_ANYTHING = ItemCodec(Any, label="the result of the step")
_codecs: WeakKeyDictionary[Any, ItemCodec] = WeakKeyDictionary()


def codec_of(fn: Callable[..., Any]) -> ItemCodec:
    """How a function's results are stored: as annotated, or else as plain JSON.

    Raises ``TaskError`` before the function is run if its annotation can't be read, and
    ``ConfigurationError`` if it can't be carried.
    """
    plain: Any = fn
    while isinstance(plain, functools.partial):
        plain = plain.func
    plain = inspect.unwrap(getattr(plain, "__func__", plain))
    hints = getattr(plain, "__annotations__", {})
    if "return" not in hints:
        return _ANYTHING
    known: ItemCodec | None = _codecs.get(plain)
    if known is not None:
        return known
    name = getattr(plain, "__qualname__", repr(plain))
    only = types.SimpleNamespace(__annotations__={"return": hints["return"]})
    try:
        names = getattr(plain, "__globals__", None)
        found = typing.get_type_hints(only, names, include_extras=True)
    except NameError as error:
        raise TaskError(f"step {name}: its return annotation can't be read: {error}") from error
    codec = ItemCodec(found["return"], label=f"the result of {name}")
    _codecs[plain] = codec
    return codec
