"""A claim that waits in the store's own thread, where news arrive.

Told in the thread of its caller, it would change threads twice more before it is on its way.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from outlast.stores.news import WORK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.stores.postgres.op import Op
    from outlast.stores.thread_loop import ThreadLoop

__all__ = ["Patient"]


class Patient:
    """One who waits for work in these queues, and is rung: more than once is as good as once."""

    __slots__ = ("_awake", "_thread", "kind", "op", "queues")

    def __init__(
        self,
        op: Op[Any],
        queues: Sequence[str],
        thread: ThreadLoop,
        awake: Callable[[Patient], None],
    ) -> None:
        self.kind = WORK
        self.op = op
        self.queues = frozenset(queues)
        self._thread = thread
        self._awake = awake

    def ring(self, *_: object) -> None:
        """From any thread."""
        if self._thread.is_here:
            self._awake(self)
            return
        # One that has ended has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._thread.soon(self._awake, self)
