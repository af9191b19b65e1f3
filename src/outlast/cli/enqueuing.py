"""The command that stores a job of a task, its arguments given as JSON."""

from __future__ import annotations

import inspect
import json
import math
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.loading import app_of, find_task
from outlast.cli.moments import age
from outlast.cli.target import Target, store_options
from outlast.limits import shown

if TYPE_CHECKING:
    from outlast.job import Added
    from outlast.task import Task

__all__ = ["arguments_of", "enqueue"]


@click.command()
@click.argument("task", metavar="MODULE:TASK")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--delay", type=age, metavar="AGE", help="Not before: 90, 15m, 2h.")
@click.option("--queue", "-q", metavar="QUEUE", help="Another queue than the task's own.")
@click.option("--key", metavar="KEY", help="Idempotency key: the same key twice is one job.")
@click.option("--priority", type=int, metavar="N", help="-100 to 100; higher runs first.")
@click.option("--create", is_flag=True, help="Create the store's file if it is missing.")
@store_options
def enqueue(target: Target, task: str, arguments: str, create: bool, **options: Any) -> None:
    """Store a job of a task.

    Its id is printed. JSON is an object of arguments by name, or an array of them in order:

    \b
        outlast enqueue shop:send_receipt '{"order": 42, "to": "a@b.example"}'
        outlast enqueue shop:send_receipt '[42, "a@b.example"]' --delay 15m

    The values are read as the types of the task's signature. The store is that of the task's app,
    unless --url or --app says otherwise.
    """
    found = find_task(task)
    args, kwargs = arguments_of(found, arguments)
    given = {name: value for name, value in options.items() if value is not None}
    bound = found.using(**given) if given else found
    job = bound.call(*args, **kwargs).job

    async def store_it() -> Added:
        store = target.connect(lambda: app_of(task, found), create=True if create else None)
        try:
            await store.open()
            (added,) = await store.add((job,))
            return added
        finally:
            await store.close()

    added = target.run(store_it)
    target.screen.line(added.id)
    if not added.created:
        target.screen.note("That key belongs to this job already; nothing was stored.")


def arguments_of(task: Task[..., Any], text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, as the types that the signature names."""
    try:
        given = json.loads(text, parse_constant=_no_number, parse_float=_within_range)
        text.encode()
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeError:
        raise click.UsageError("the arguments hold half a character, which is no UTF-8") from None
    except ValueError as error:
        raise click.UsageError(
            f"{shown(text)} is not JSON ({error}); write an object or an array, in single quotes"
        ) from None
    except RecursionError:
        raise click.UsageError("the arguments are nested too deep") from None
    if isinstance(given, list):
        text = json.dumps(given := _by_name(task, given))
    if not isinstance(given, dict):
        raise click.UsageError(f"{shown(text)}: write an object of arguments by name, or an array")
    args, kwargs = task.signature.decode(text.encode())
    return args, kwargs


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _within_range(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.40} is too large a number")
    return number


def _by_name(task: Task[..., Any], values: list[Any]) -> dict[str, Any]:
    parameters = list(inspect.signature(task.fn).parameters.values())
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    given = dict(zip(names, values, strict=False))
    rest = values[len(names) :]
    if not rest:
        return given
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return {**given, "*": rest}
    raise click.UsageError(
        f"{len(values)} arguments, but {task.name} takes {len(names)}: {', '.join(names) or 'none'}"
    )
