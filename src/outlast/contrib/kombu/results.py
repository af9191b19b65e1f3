"""Celery's results beside its messages, with counters so that chords need no polling."""

from __future__ import annotations

import logging
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import ImproperlyConfigured
from celery.states import PROPAGATE_STATES

from outlast.collected import when_collected
from outlast.contrib.kombu.shared import NAMESPACE, Shared
from outlast.errors import StoreClosed, StoreStopped, StoreUnavailable
from outlast.stores import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.contrib.kombu.shelves import Shelf

__all__ = ["OutlastResults"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK = 0.05
"""Seconds between two looks of somebody who waits for a result."""
PAUSE = 0.5
"""Seconds between two tries to store a result while the store is away."""


class OutlastResults(KeyValueStoreBackend):
    """``result_backend="outlast+sqlite:///app.db"``: a result is durable before its task is acked.

    ``result_backend_transport_options`` may have a ``namespace``; without one it is ``celery``.
    """

    supports_autoexpire = True
    supports_native_join = True
    persistent = True
    implements_incr = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, **kwargs)
        self.url = url
        if not url or url == "outlast":
            raise ImproperlyConfigured(
                "result_backend='outlast' doesn't say where: use outlast+sqlite:///path/to/file.db"
            )
        options = app.conf.get("result_backend_transport_options") or {}
        self._namespace = options.get("namespace", NAMESPACE)
        self._shared: Shared | None = None

    def as_uri(self, include_password: bool = False) -> str:
        url = self.url or ""
        return f"outlast+{url if include_password else redact(url)}"

    @property
    def _shelf(self) -> Shelf:
        shared = self._shared
        if shared is None or shared.pid != os.getpid():
            shared = self._shared = Shared.take(self.url or "", self._namespace)
            when_collected(self, shared.leave)
        return shared.shelf

    def _ask(self, what: Callable[[Shelf], T]) -> T:
        """Ask the store; again and again in a worker that tells the end of a task."""
        told = False
        while True:
            asked = self._shared
            try:
                return what(self._shelf)
            except StoreClosed:
                if asked is None:
                    raise
                self._shared = None  # another has opened it anew
            except StoreUnavailable as error:
                if isinstance(error, StoreStopped):
                    self._shared = None  # whoever takes it next opens it anew, if that can be
                if not _ending.get():
                    raise
                if not told:
                    _log.warning("the end of a task waits to be stored: %s", error)
                told = True
                threading.Event().wait(PAUSE)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """For Celery's ``result_backend_always_retry``, which has those wait who ask."""
        return isinstance(exc, StoreUnavailable)

    def store_result(self, *args: Any, **kwargs: Any) -> Any:
        """As Celery's, but it waits for a store that is away.

        Celery takes what is raised here for a failure of the task, acknowledges it, and goes on:
        whoever waits for the result would wait for ever.
        """
        token = _ending.set(True)
        try:
            return super().store_result(*args, **kwargs)
        finally:
            _ending.reset(token)

    def get(self, key: str | bytes) -> str | None:
        return self.mget([key])[0]

    def mget(self, keys: Sequence[str | bytes]) -> list[str | None]:
        found = self._ask(lambda shelf: shelf.get([_name(key) for key in keys]))
        return [None if value is None else value.decode() for value in found]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ask(lambda shelf: shelf.put({_name(key): data}, self.expires or None))

    def delete(self, key: str | bytes) -> None:
        self._ask(lambda shelf: shelf.drop([_name(key)]))

    def delete_group(self, group_id: str) -> None:
        if _part.get() is not None:
            # Of a chord whose body was sent. A part of it may yet be run again, and is to know
            # that before it finds the group gone: Celery takes that for an error of the chord.
            over = _over(_name(self.get_key_for_chord(group_id)))
            self._ask(lambda shelf: shelf.put({over: b""}, self.expires or None))
        super().delete_group(group_id)

    def incr(self, key: str | bytes) -> int:
        name, part = _name(key), _part.get()
        once = None if part is None else f"{name} part {part}"
        return self._ask(lambda shelf: shelf.count(name, self.expires or None, once))

    def expire(self, key: str | bytes, value: float) -> None:
        self._ask(lambda shelf: shelf.keep([_name(key)], value))

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Called before the last task of a chord's header is sent."""
        size = {self._size_of(group_id): b"%d" % chord_size}
        self._ask(lambda shelf: shelf.put(size, self.expires or None))

    def on_chord_part_return(self, request: Any, state: Any, result: Any, **kwargs: Any) -> None:
        """Count the tasks of groups inside the header as well, where Celery counts the groups.

        It would wait in the worker for results that perhaps need this very worker. And count each
        once: one that ran again, since its worker died, has the number that it had before.
        """
        part, ending = _part.set(request.id), _ending.set(True)
        try:
            if request.group and request.chord:
                over = _over(_name(self.get_key_for_chord(request.group)))
                keys = [self._size_of(request.group), over]
                size, ended = self._ask(lambda shelf: shelf.get(keys))
                if ended is not None:
                    return
                if size is not None:
                    request.chord["chord_size"] = int(size)
            super().on_chord_part_return(request, state, result, **kwargs)
        finally:
            _part.reset(part)
            _ending.reset(ending)

    def _size_of(self, group_id: str) -> str:
        return _name(self.get_key_for_group(group_id, ".size"))

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:
        """As Celery's, looking more often."""
        meta = super().wait_for(task_id, timeout, min(interval, LOOK), no_ack, on_interval)
        if on_interval is not None and meta["status"] in PROPAGATE_STATES:
            # Celery looks at the results before this one here: the error of a task in a chord's
            # header says more than the ChordError that it has led to.
            on_interval()
        return meta


_part: ContextVar[str | None] = ContextVar("outlast.celery.part", default=None)
"""The task whose end is being counted."""
_ending: ContextVar[bool] = ContextVar("outlast.celery.ending", default=False)
"""Whether the end of a task is being told."""


def _over(name: str) -> str:
    return f"{name} over"


def _name(key: str | bytes) -> str:
    return f"result {key.decode() if isinstance(key, bytes) else key}"
