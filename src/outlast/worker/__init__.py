"""The worker: claims jobs, runs them and settles them; and the supervisor of worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.worker.options import WorkerOptions
    from outlast.worker.supervisor import supervise
    from outlast.worker.worker import Worker

__all__ = ["Worker", "WorkerOptions", "supervise"]


def __getattr__(name: str) -> Any:
    # Late, so that a supervisor stays small and a worker knows nothing of it.
    if name == "Worker":
        from outlast.worker.worker import Worker

        return Worker
    if name == "WorkerOptions":
        from outlast.worker.options import WorkerOptions

        return WorkerOptions
    if name == "supervise":
        from outlast.worker.supervisor import supervise

        return supervise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
