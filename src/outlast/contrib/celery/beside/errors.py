"""Errors as Celery's results tell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.job import Failure

__all__ = ["exception", "of_error", "of_failure"]

_PLAIN = (str, int, float, bool, type(None))


def exception(kind: str, message: Any, module: str) -> dict[str, Any]:
    """An exception as Celery's results have it."""
    return {"exc_type": kind, "exc_message": [message], "exc_module": module}


def of_error(error: BaseException) -> dict[str, Any]:
    """What a task raised. Arguments that are no plain values travel as their text."""
    kind = type(error)
    args = [one if isinstance(one, _PLAIN) else repr(one)[:1000] for one in error.args]
    return {"exc_type": kind.__qualname__, "exc_message": args, "exc_module": kind.__module__}


def of_failure(failure: Failure | None) -> dict[str, Any]:
    """How a job ended that could not say so itself."""
    if failure is None:
        return exception("TaskRevokedError", "revoked", "celery.exceptions")
    if failure.kind in ("cancelled", "expired"):
        said = "expired" if failure.kind == "expired" else "terminated"
        return exception("TaskRevokedError", said, "celery.exceptions")
    if failure.kind == "timeout":
        return exception("TimeLimitExceeded", failure.message, "billiard.exceptions")
    if failure.kind in ("crash", "lost"):
        return exception("WorkerLostError", failure.message, "billiard.exceptions")
    module, _, name = failure.type.rpartition(".")
    return exception(name or "Exception", failure.message, module or "builtins")
