"""The store that all connections of one process to one place share: one writer, one life sign."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from kombu.utils.compat import detect_environment

from outlast import lifeline
from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.contrib.kombu.calls import finish
from outlast.contrib.kombu.hands import LOCAL, Hands
from outlast.contrib.kombu.places import Places
from outlast.contrib.kombu.shelves import shelf_of
from outlast.errors import EnqueueUncertain, StoreError, StoreStopped, Unsupported
from outlast.store import Direct, Ledger, Store
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job

__all__ = ["NAMESPACE", "Shared", "Whole"]

_log = logging.getLogger(__name__)

NAMESPACE = "celery"


REPEATS = 3
"""How often a message is added again, under its id, when nobody knows whether it is stored."""


class Whole(Store, Direct, Ledger, Protocol):
    """What the stores are that are good for this."""


class Shared:
    """Opened by the first who takes it, closed when the last has left; in a fork, opened anew."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _open: ClassVar[dict[tuple[int, str, str], Shared]] = {}
    _watching: ClassVar[bool] = False

    def __init__(self, store: Whole, namespace: str) -> None:
        self.pid = os.getpid()
        self.store = store
        self.clock = SystemClock()
        self.chance = SystemChance()
        self._key = (self.pid, store.url, namespace)
        self._users = 0
        store.open_now()
        try:
            self.shelf = shelf_of(store)
            self.places = Places(self.shelf)
            self._recover_the_dead()
        except BaseException:
            store.close_now()
            raise
        self.hands = Hands(self)

    @classmethod
    def take(cls, url: str, namespace: str = NAMESPACE) -> Shared:
        """The store behind a URL, open. Whoever takes it has to ``leave`` it."""
        store = cast("Whole", connect(url, namespace=namespace))
        if detect_environment() != "default" and not store.url.startswith(LOCAL):
            raise Unsupported(
                f"{store.url} needs an event loop in a thread of its own, which greenlets don't "
                "have: use outlast+sqlite, or the prefork or threads pool"
            )
        cls._watch()
        with cls._lock:
            key = (os.getpid(), store.url, namespace)
            found = cls._open.get(key)
            if found is None:
                found = cls._open[key] = cls(store, namespace)
            else:
                found = found._itself_or_anew()
            found._users += 1
            return found

    def _itself_or_anew(self) -> Shared:
        """Another one, if this was given up for good. Raises if the store is away, or gone."""
        try:
            self.shelf.keep([""], None)
        except StoreStopped as stopped:
            try:
                store = connect(self.store.url, namespace=self._key[2], create=False)
                anew = Shared._open[self._key] = Shared(cast("Whole", store), self._key[2])
            except StoreError:
                raise stopped from None  # which says what to do
            _log.warning("opened anew: %s", stopped)
            with suppress(StoreError):
                self._close()
            return anew
        return self

    def leave(self) -> None:
        """One user less. What was acknowledged is settled before the store is closed.

        While tasks run whose messages are ours still, it stays open for their acks.
        """
        with Shared._lock:
            if self.pid != os.getpid() or Shared._open.get(self._key) is not self:
                return
            self._users -= 1
            if self._users == 0 and not self.hands.goes_on:
                del Shared._open[self._key]
                self._close()

    def _close(self) -> None:
        try:
            self.hands.close()
        finally:
            self.store.close_now()

    @classmethod
    def _watch(cls) -> None:
        if not cls._watching:
            cls._watching = True
            atexit.register(cls._close_all)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=cls._in_child)

    @classmethod
    def _in_child(cls) -> None:
        # Another thread may have held it. What is open is the parent's, and stays untouched.
        cls._lock = threading.Lock()

    @classmethod
    def _close_all(cls) -> None:
        with cls._lock:
            for key, shared in list(cls._open.items()):
                if shared.pid == os.getpid():
                    del cls._open[key]
                    try:
                        shared._close()
                    except StoreError as error:
                        _log.warning("what is held comes back to others: %s", error)

    # -- messages

    def add(self, jobs: Sequence[Job]) -> None:
        """Store messages, all or none; durable when this returns. Threads share one commit."""
        for left in reversed(range(REPEATS)):
            try:
                self.store.add_now(jobs)
            except EnqueueUncertain:
                # Under the same ids it is harmless to do it again.
                if not left:
                    raise
            else:
                return

    def _recover_the_dead(self) -> None:
        """Put back what dead processes of this machine held; SQLite's ``open`` did it already."""
        folder = self.store.lifelines
        if folder is not None and not self.store.url.startswith(LOCAL):
            for worker, cause in lifeline.dead(folder):
                finish(self.store.recover_worker(worker, cause))
                lifeline.forget(folder, worker)
