"""How a consumer hears that there may be something for it: a descriptor to be watched."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

from kombu.utils.compat import detect_environment

from outlast.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.store import Store

__all__ = ["Ear"]

_log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds after which a consumer looks by itself, whatever was heard."""
GREEN_LOOK = 0.05
"""The same among greenlets, where an event loop of ours would be in the way of the program's."""
TROUBLE = 0.5
"""Seconds to wait if the store can't be listened to; whoever looks then is told why."""


class Ear:
    """Readable when something may have come. It listens once for each time it is asked."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._ends: tuple[int, int] | None = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)
        self.descriptor = self._ends[0]
        self.heard = True
        """Whether there may be something new since this was last set to False."""
        self._rung = False
        self._queues: Sequence[str] = ()
        self._asked = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def ring(self, _: object = None) -> None:
        """Make it readable. Any thread may."""
        with self._lock:
            if self._ends is not None and not self._rung:
                self._rung = True
                with contextlib.suppress(BlockingIOError):
                    os.write(self._ends[1], b"x")

    def hush(self) -> None:
        """It was heard."""
        if not self._rung:
            return
        with self._lock:
            self._rung = False
            if self._ends is not None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._ends[0], 4096)

    def ask(self, queues: Sequence[str]) -> None:
        """Ring once when something was added after the last claim from these queues."""
        self._queues = queues
        if self._asked.is_set():
            return
        if self._thread is None:
            run = self._listen if detect_environment() == "default" else self._look
            self._thread = threading.Thread(target=run, name="outlast-ear", daemon=True)
            self._thread.start()
        self._asked.set()

    def close(self) -> None:
        self._closing.set()
        self._asked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._lock:
            ends, self._ends = self._ends, None
        for end in ends or ():
            os.close(end)

    def _listen(self) -> None:
        with asyncio.Runner() as runner:
            while self._is_asked():
                try:
                    runner.run(self._store.wait(self._queues, LOOK))
                except StoreError:
                    self._closing.wait(TROUBLE)
                except Exception:
                    # Nobody would look any more if this thread ended.
                    _log.exception("the store can't be listened to")
                    self._closing.wait(TROUBLE)
                self._tell()

    def _look(self) -> None:
        while self._is_asked():
            self._closing.wait(GREEN_LOOK)
            self._tell()

    def _is_asked(self) -> bool:
        self._asked.wait()
        self._asked.clear()
        return not self._closing.is_set()

    def _tell(self) -> None:
        self.heard = True
        self.ring()
