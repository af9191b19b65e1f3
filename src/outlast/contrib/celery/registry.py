"""Which app is the current one, and the tasks that every app shall have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_shared", "current_app", "join", "shared_task"]

_apps: list[Any] = []
_shared: list[Callable[[Any], Any]] = []


def join(app: Any) -> None:
    """Make an app the current one, and give it what is shared."""
    _apps.append(app)
    for register in _shared:
        register(app)


def current_app() -> Any:
    """The app that was made last. Raises ``ConfigurationError`` if there is none."""
    if not _apps:
        raise ConfigurationError("there is no app yet: make one with Celery(...) first")
    return _apps[-1]


def add_shared(register: Callable[[Any], Any]) -> None:
    """Have every app register something, those that are there and those to come."""
    _shared.append(register)
    for app in _apps:
        register(app)


class _Shared:
    """Stands for a task in whichever app is the current one."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        self.__wrapped__ = fn
        self._options = options
        add_shared(lambda app: app.task(**options)(fn))

    def _task(self) -> Any:
        app = current_app()
        name = self._options.get("name") or app.name_of(self.__wrapped__)
        return app.tasks[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._task()(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<shared task {self.__wrapped__.__qualname__}>"


def shared_task(*args: Any, **options: Any) -> Any:
    """A task of every app: for modules that don't know the app."""
    if len(args) == 1 and callable(args[0]):
        return _Shared(args[0], options)
    return lambda fn: _Shared(fn, options)
