"""The command that moves every job of one store into another, and shows how far it has come."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from outlast.access import ledger_of
from outlast.cli.reading import as_json
from outlast.cli.target import warn_of_password
from outlast.clock import SystemClock
from outlast.errors import MoveRefused, StoreError
from outlast.moving import Moved, left_behind
from outlast.moving import move as move_jobs
from outlast.store import Durability
from outlast.stores import connect, redact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.cli.screen import Screen
    from outlast.store import Store

__all__ = ["move", "tell_of_the_old"]

BEAT = 1.0
"""Seconds between two lines about how far it has come."""


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--namespace", metavar="NAME", help="Only this namespace (default: all there are).")
@click.option("--drain", is_flag=True,
              help="Let living workers end what they run; they get nothing more.")  # fmt: skip
@as_json
@click.pass_obj
def move(
    screen: Screen,
    /,
    source: str,
    target: str,
    namespace: str | None,
    drain: bool,
    as_json: bool,
) -> None:
    """Move every job of one store into another.

    \b
        outlast move sqlite:///shop.db postgresql://shop@db/shop

    FROM and TO are URLs. All that is stored comes along: ids, arguments, states, results, attempts,
    failures, steps, due times, idempotency keys, events, items of queues in their order. Stop the
    workers first, or say --drain. From then on nothing can be added to FROM, and nothing in it runs
    any more; a job can run in TO as soon as it has arrived. Interrupted anywhere, the same command
    goes on where it stood.
    """
    for url in (source, target):
        screen.hide(url)
        warn_of_password(screen, url)
    found = asyncio.run(_move_all(_Teller(screen, quiet=as_json), source, target, namespace, drain))
    if as_json:
        screen.json({"from": redact(source), "to": redact(target), "namespaces": found})


class _Teller:
    """Says now and then how far a move has come."""

    def __init__(self, screen: Screen, *, quiet: bool) -> None:
        self._screen = screen
        self._quiet = quiet
        self._clock = SystemClock()
        self._told = self._clock.monotonic()
        self._began = self._told

    def namespace(self, name: str) -> None:
        if not self._quiet and name != "default":
            self._screen.line(f"Namespace {name}")

    def progress(self, moved: Moved) -> None:
        now = self._clock.monotonic()
        if now - self._told < BEAT or moved.stage == "done":
            return
        self._told = now
        if moved.stage == "draining":
            text = f"{moved.running} running; waiting until they have ended"
        elif moved.stage == "moving":
            rate = moved.jobs / max(0.001, now - self._began)
            text = f"{moved.jobs} of {moved.total} jobs moved, {rate:.0f} a second"
        else:
            text = f"all have arrived; {moved.deleted} deleted where they were"
        self._screen.note(text)

    def end(self, moved: Moved) -> None:
        if self._quiet:
            return
        again = " in this run, which went on with one before" if moved.resumed else ""
        self._screen.line(
            f"Moved {moved.jobs} jobs, {moved.keys} keys and {moved.events} events{again}."
        )
        if moved.known:
            self._screen.line(
                f"{moved.known} of the jobs were there already, and stayed as they were."
            )
        if moved.keyless:
            self._screen.line(
                f"{moved.keyless} came without their idempotency key, which another job holds there"
                " by now: both will run."
            )


async def _move_all(
    teller: _Teller, source: str, target: str, namespace: str | None, drain: bool
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in [namespace] if namespace else await _namespaces(source):
        teller.namespace(name)
        async with AsyncExitStack() as stack:
            out = await _opened(stack, source, name, create=False)
            into = await _opened(stack, target, name, create=True)
            if into.durability < Durability.PROCESS <= out.durability:
                raise MoveRefused(f"{into.url} would lose the jobs with this process")
            moved = await move_jobs(out, into, drain=drain, tell=teller.progress)
        teller.end(moved)
        found.append({"namespace": name, **asdict(moved)})
    return found


async def _namespaces(url: str) -> Sequence[str]:
    async with AsyncExitStack() as stack:
        store = await _opened(stack, url, "default", create=False)
        return await ledger_of(store).namespaces() or ["default"]


async def _opened(stack: AsyncExitStack, url: str, namespace: str, *, create: bool) -> Store:
    store = connect(url, namespace=namespace, create=create)
    stack.push_async_callback(store.close)
    await store.open()
    return store


def tell_of_the_old(screen: Screen, old: str) -> None:
    """Say what a store still holds from which the workers that are started here have come."""
    screen.hide(old)

    async def count() -> dict[str, int]:
        left: dict[str, int] = {}
        for name in await _namespaces(old):
            async with AsyncExitStack() as stack:
                left[name] = await left_behind(await _opened(stack, old, name, create=False))
        return {name: many for name, many in left.items() if many}

    shown = redact(old)
    try:
        left = asyncio.run(count())
    except StoreError as error:
        screen.note(f"Warning: nobody knows whether {shown} still holds jobs: {error}")
        return
    for name, many in left.items():
        where = "" if name == "default" else f" in namespace {name}"
        screen.note(
            f"Warning: {shown} still holds {many} jobs{where} that nobody here will run. Move them:"
            f" outlast move {shown} NEW_URL"
        )
