"""What a supervisor and its worker processes are told, as one record that travels as JSON."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WorkerOptions"]


class WorkerOptions(NamedTuple):
    """How ``outlast worker`` runs. A plain tuple, because the supervisor is to stay small.

    Durations are seconds. The default grace leaves room before the 30 seconds after which systemd,
    Docker and Kubernetes kill what they stop.
    """

    target: str
    """Where the app is: ``module:attribute``."""
    url: str | None = None
    """Stands for the app's own URL."""
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
    app_dir: str = "."
    """The folder that is put in front of the module path."""
