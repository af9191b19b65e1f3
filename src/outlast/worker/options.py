"""What a supervisor and its worker processes are told, as one record that travels as JSON."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EXIT_BLOCKED", "EXIT_BROKEN", "EXIT_REFUSED", "EXIT_RELOAD", "WorkerOptions"]

EXIT_BLOCKED = 86
"""A worker process ended itself because a task blocked its event loop for too long."""
EXIT_RELOAD = 87
"""A worker process ended because a file of the program changed."""
EXIT_REFUSED = 88
"""A worker process could not start, and has said why."""
EXIT_BROKEN = 89
"""A worker process ended itself because a task broke its event loop."""


class WorkerOptions(NamedTuple):
    """How worker processes are run. A plain tuple, because the supervisor is to stay small.

    Durations are seconds. The default grace leaves room before the 30 seconds after which systemd,
    Docker and Kubernetes kill what they stop.
    """

    target: str
    """Where the app is: ``module:attribute``."""
    loader: str = "outlast.worker.child:load"
    """``module:function`` that makes of these options what a worker process runs."""
    check: str = ""
    """``module:function`` that is given the store once it is open: it answers with lines to be
    logged, or refuses to go on by raising ``OutlastError``."""
    url: str | None = None
    """For the loader: stands for the app's own URL."""
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 10
    processes: int = 1
    grace: float = 25.0
    lease: float = 15.0
    loop: str = "asyncio"
    """``asyncio`` or ``uvloop``."""
    reload: bool = False
    """Restart the processes when a file of an imported module changes."""
    log_level: str = "info"
    create: bool = False
    """Whether the store may be created if it isn't there."""
    outbox: str | None = None
    """URL of a database whose outbox is moved on to the store, beside the work."""
