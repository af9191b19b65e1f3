"""Celery's settings: those that count here, those that change nothing, and those refused."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

from outlast.errors import Unsupported

__all__ = ["Settings"]

DEFAULTS: dict[str, Any] = {
    "result_expires": timedelta(days=1),
    "task_always_eager": False,
    "task_annotations": None,
    "task_default_priority": None,
    "task_default_queue": "default",
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_routes": None,
    "task_time_limit": None,
    "include": (),
    "imports": (),
    "timezone": None,
    "enable_utc": True,
}
"""The settings that count, or that programs read back."""

SAME = (
    "broker_", "result_", "redis_", "worker_", "event_", "control_", "database_", "cache_",
    "accept_content", "security_", "beat_", "deprecated_",
)  # fmt: skip
"""What begins so concerns servers, pools and formats that are not here, and changes nothing."""

SAME_OF_TASKS = {
    "task_acks_late", "task_acks_on_failure", "task_acks_on_failure_or_timeout",
    "task_acks_on_timeout", "task_compression", "task_create_missing_queues",
    "task_default_delivery_mode", "task_default_exchange", "task_default_exchange_type",
    "task_default_routing_key", "task_default_queue_type", "task_inherit_parent_priority",
    "task_protocol", "task_publish_retry", "task_publish_retry_policy", "task_queue_max_priority",
    "task_queues", "task_reject_on_worker_lost", "task_remote_tracebacks",
    "task_retry_on_worker_lost", "task_send_sent_event", "task_store_eager_result",
    "task_store_errors_even_if_ignored", "task_track_started",
}  # fmt: skip
"""Names of tasks' settings that change nothing: jobs are kept until they have ended, anyway."""

REFUSED = {
    "beat_schedule": "there are no schedules yet: start the calls from cron or a systemd timer",
    "task_default_rate_limit": "bound how many run at a time: outlast worker --concurrency",
    "task_soft_time_limit": "use task_time_limit, and outlast.current().cancelled in long loops",
}
JSON = {"task_serializer", "result_serializer", "event_serializer"}


class Settings:
    """``app.conf``. Raises ``Unsupported`` for what can't be meant here."""

    def __init__(self) -> None:
        object.__setattr__(self, "_set", {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._set.get(name, DEFAULTS.get(name))

    def __setattr__(self, name: str, value: Any) -> None:
        _check(name, value)
        self._set[name] = value

    __getitem__ = __getattr__
    __setitem__ = __setattr__

    def get(self, name: str, default: Any = None) -> Any:
        return self._set.get(name, DEFAULTS.get(name, default))

    def update(self, *given: Any, **more: Any) -> None:
        for name, value in {**dict(*given), **more}.items():
            setattr(self, name, value)

    def read(self, source: Any) -> None:
        """From a module, its name, or any object: every attribute that is a setting."""
        found = importlib.import_module(source) if isinstance(source, str) else source
        items = found.items() if isinstance(found, dict) else vars(found).items()
        for name, value in items:
            if not name.startswith("_") and _is_known(name):
                setattr(self, name, value)


def _is_known(name: str) -> bool:
    return name in DEFAULTS or name.startswith((*SAME, "task_"))


def _check(name: str, value: Any) -> None:
    if name.isupper():
        raise Unsupported(f"{name}: use the names in small letters that Celery has had since 4.0")
    if name in REFUSED and value:
        raise Unsupported(f"{name}: {REFUSED[name]}")
    if name in JSON and value != "json":
        raise Unsupported(f"{name}={value!r}: jobs are JSON, always; nothing stored is ever code")
    if name.startswith("task_") and name not in DEFAULTS and not _is_same(name):
        raise Unsupported(f"there is no setting {name}")


def _is_same(name: str) -> bool:
    return name in SAME_OF_TASKS or name in REFUSED or name in JSON
