"""Finds the user's app and tasks, MODULE:APP and MODULE:TASK, from the current folder on."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.screen import Screen
from outlast.cli.suggest import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from outlast.app import Outlast
    from outlast.task import Task
    from outlast.worker.options import WorkerOptions

__all__ = [
    "app_of",
    "find_app",
    "find_celery",
    "find_function",
    "find_task",
    "for_worker",
    "import_module",
    "split",
]


T = TypeVar("T")


class ImportFailed(click.ClickException):
    """The user's module could not be imported; the cause is in the message."""

    exit_code = 2


def find_app(spec: str) -> Outlast:
    """The app that ``MODULE:APP`` names, or the only one there is in ``MODULE``.

    Raises ``click.UsageError`` saying what was found there, ``ImportFailed`` with the cause.
    """
    from outlast.app import Outlast

    name, path = split(spec)
    module = import_module(name)
    apps = {**_things(module, Outlast), **_below(module)}
    if not path:
        if len({id(app) for app in apps.values()}) == 1:
            return next(iter(apps.values()))
        raise click.UsageError(f"{name} holds {_counted(apps, 'app')}; write {name}:APP")
    found = _walk(module, path, apps, f"its apps are {listed(apps)}")
    found = apps.get(path, found)
    if isinstance(found, Outlast):
        return found
    raise click.UsageError(
        f"{spec} is {_kind(found)}, not an Outlast app; the apps of {name} are {listed(apps)}"
    )


def find_task(spec: str) -> Task[..., Any]:
    """The task that ``MODULE:TASK`` names: an attribute of the module, or a task's own name.

    Raises ``click.UsageError`` saying what was found there, ``ImportFailed`` with the cause.
    """
    from outlast.app import Outlast
    from outlast.task import Task

    name, path = split(spec)
    if not path:
        raise click.UsageError(f"{spec!r}: write MODULE:TASK, for example shop:send_receipt")
    module = import_module(name)
    tasks = _things(module, Task)
    apps = _things(module, Outlast).values()
    named = {key: task for app in apps for key, task in app.tasks.items()}
    if path in named:
        return named[path]
    found = _walk(module, path, {**named, **tasks}, f"its tasks are {listed(tasks or named)}")
    if isinstance(found, Task):
        return found
    hint = "; decorate it with @app.task" if callable(found) else ""
    raise click.UsageError(
        f"{spec} is {_kind(found)}, not a task{hint}; the tasks of {name} are {listed(tasks)}"
    )


def find_celery(spec: str) -> Any:
    """The Celery app that ``MODULE:APP`` names, or the only one there is in ``MODULE``.

    Raises ``click.UsageError`` saying what was found there, ``ImportFailed`` with the cause.
    """
    name, path = split(spec)
    module = import_module(name)
    # Told by what it has: Celery itself is not imported here, and apps of subclasses are as good.
    apps = {
        key: value
        for key, value in vars(module).items()
        if not isinstance(value, type) and all(hasattr(value, word) for word in _OF_CELERY)
    }
    if not path:
        if len({id(app) for app in apps.values()}) == 1:
            return next(iter(apps.values()))
        raise click.UsageError(f"{name} holds {_counted(apps, 'Celery app')}; write {name}:APP")
    found = _walk(module, path, apps, f"its Celery apps are {listed(apps)}")
    if any(found is app for app in apps.values()) or hasattr(found, "connection_for_read"):
        return found
    raise click.UsageError(f"{spec} is {_kind(found)}, not a Celery app")


_OF_CELERY = ("conf", "tasks", "connection_for_read", "loader")


def find_function(spec: str) -> Callable[..., Any]:
    """What ``MODULE:FUNC`` names. Raises ``click.UsageError``, ``ImportFailed`` with the cause."""
    name, path = split(spec)
    if not path:
        raise click.UsageError(f"{spec!r}: write MODULE:FUNC, for example shop:charges")
    module = import_module(name)
    there = {key: value for key, value in vars(module).items() if callable(value)}
    found = _walk(module, path, there, "look at its spelling")
    if not callable(found):
        raise click.UsageError(f"{spec} is {_kind(found)}, not a function")
    function: Callable[..., Any] = found
    return function


def app_of(spec: str, task: Task[..., Any]) -> Outlast:
    """The app in the task's module (or in the module ``spec`` names) that the task belongs to."""
    from outlast.app import Outlast

    modules = [sys.modules.get(name) for name in (split(spec)[0], task.fn.__module__)]
    for module in modules:
        for app in _things(module, Outlast).values():
            if app.tasks.get(task.name) is not None:
                return app
    raise click.UsageError(
        f"the app of task {task.name} was not found in its module; say --app MODULE:APP"
    )


def import_module(name: str) -> ModuleType:
    """Import a module, the current folder coming first, as ``python -m`` has it.

    Raises ``click.UsageError`` if there is no such module, ``ImportFailed`` with the cause and the
    place if it is there and can't be imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise click.UsageError(_absent(name, missing)) from error
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def for_worker(options: WorkerOptions) -> Outlast:
    """What a worker process runs; its log goes through the same mask as everything else."""
    Screen((), os.environ).mask_logging()
    return find_app(options.target)


def split(spec: str) -> tuple[str, str]:
    """Module and path of ``MODULE:NAME``. Raises ``click.UsageError`` saying what to write."""
    name, _, path = spec.partition(":")
    if name.endswith(".py") or "/" in name:
        module = name.removesuffix(".py").strip("./").replace("/", ".")
        wanted = f"{module}:{path}" if path else module
        raise click.UsageError(f"{spec!r} names a file; name the module: {wanted}")
    # With a dash it is no name for an import statement, and importlib takes it all the same.
    if not all(part.replace("-", "_").isidentifier() for part in name.split(".")):
        raise click.UsageError(f"{spec!r} does not begin with a module; write MODULE:NAME")
    return name, path


def _absent(name: str, missing: str) -> str:
    folder = Path.cwd()
    if missing != name:
        return f"there is no module {missing!r} (of {name!r}), in {folder} or installed"
    near = [path.stem for path in folder.glob("*.py")]
    near += [path.parent.name for path in folder.glob("*/__init__.py")]

    close = did_you_mean(name, near)
    return (
        f"there is no module {name!r}, in {folder} (which has {listed(near)}) or installed{close}"
    )


def _failed(name: str, error: BaseException) -> ImportFailed:
    """The cause, and the line of the user's code that is nearest to it."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    at = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        at = f" ({error.filename}, line {error.lineno})"
    if isinstance(error, SystemExit):
        return ImportFailed(f"importing {name} ended the program{at}; is `if __name__` missing?")
    cause = error.msg if isinstance(error, SyntaxError) else str(error)
    return ImportFailed(f"{name} can't be imported: {type(error).__name__}: {cause}{at}")


def _walk(module: ModuleType, path: str, known: dict[str, Any], there: str) -> Any:
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise click.UsageError(
                f"{module.__name__} has no {path!r}; {there}{did_you_mean(path, known)}"
            ) from None
    return found


def _things(module: ModuleType | None, kind: type[T]) -> dict[str, T]:
    if module is None:
        return {}
    return {name: value for name, value in vars(module).items() if isinstance(value, kind)}


def _below(module: ModuleType) -> dict[str, Outlast]:
    """The apps below others, such as that of a ``contrib.celery.compat.Celery``."""
    if "outlast.contrib.celery.compat" not in sys.modules:
        return {}
    from outlast.contrib.celery.compat import Celery

    return {name: found.outlast for name, found in _things(module, Celery).items()}


def _kind(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    named = type(thing).__name__
    return f"{'an' if named[0] in 'AEIOUaeiou' else 'a'} {named}"


def _counted(found: dict[str, Any], what: str) -> str:
    return f"several {what}s ({listed(found)})" if found else f"no {what}"
