"""How a command finds its store: --url, --app, or the environment; and how it opens it."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.access import ledger_of
from outlast.cli.secrets import has_password, redact
from outlast.cli.suggest import did_you_mean, listed
from outlast.errors import DurabilityError, JobNotFound
from outlast.movable import Movable
from outlast.store import Durability, offers
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from outlast.app import Outlast
    from outlast.cli.screen import Screen
    from outlast.store import Ledger, Line, Store

__all__ = ["Target", "known_queue", "moved_to", "store_options", "warn_of_password"]

T = TypeVar("T")


class Target:
    """The store a command is about. Nothing is opened until ``reading`` or ``writing``."""

    def __init__(
        self, screen: Screen, url: str | None, app: str | None, namespace: str | None
    ) -> None:
        self.screen = screen
        self._app = app
        self._namespace = namespace
        self._url = url
        warn_of_password(screen, url)
        if url and app:
            raise click.UsageError("--url and --app both name the store: give one of them")
        if namespace and app:
            raise click.UsageError("--app has a namespace of its own: leave --namespace away")

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a command's coroutine to its end."""
        return asyncio.run(work())

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[tuple[Store, Ledger]]:
        """The store, open; whatever it guarantees, since looking promises nothing.

        A missing file is an error, not an empty store. What an app or a URL asks for must hold.
        """
        try:
            store = await self._opened(None)
        except DurabilityError as error:
            if self._app is not None or "durability=" in self._address():
                raise
            self.screen.note(f"Note: {error}")
            store = await self._opened(Durability.MEMORY)
        try:
            if (to := await moved_to(store)) is not None:
                self.screen.note(f"Note: the jobs of {store.url} {to}")
            yield store, await self._known(store)
        finally:
            await store.close()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[tuple[Store, Ledger]]:
        """The store, open, and at least as durable as it should be."""
        store = await self._opened(None)
        try:
            yield store, await self._known(store)
        finally:
            await store.close()

    @property
    def name(self) -> str:
        """What was named as the store, without a password."""
        return self._app or redact(self._address())

    @property
    def namespace(self) -> str:
        """The namespace of the jobs that the command is about."""
        if self._app is not None:
            from outlast.cli.loading import find_app

            return find_app(self._app).namespace
        return self._namespace or "default"

    def connect(
        self, default: Callable[[], Outlast] | None = None, *, create: bool | None = False
    ) -> Store:
        """The store, not opened yet.

        ``default`` finds the app to ask where the command line names no store. ``create`` None is
        what that app wants, or no for a URL.
        """
        if self._app is not None:
            from outlast.cli.loading import find_app

            return find_app(self._app).open_store(create=create)
        if self._url is None and default is not None:
            return default().open_store(create=create)
        return self._connect(None, bool(create))

    def _connect(self, durability: Durability | None, create: bool) -> Store:
        return connect(
            self._address(),
            namespace=self._namespace or "default",
            durability=durability,
            create=create,
        )

    def _address(self) -> str:
        from outlast.location import find_url

        url = self._url or find_url()
        if url is None:
            raise click.UsageError(
                "which store? Say --url sqlite:///FILE or --app MODULE:APP, or set OUTLAST_URL"
            )
        self.screen.hide(url)
        return url

    async def _known(self, store: Store) -> Ledger:
        """Its ledger. Raises ``JobNotFound`` if nothing was ever stored in the namespace asked for.

        That is as if it were a typo; without any, there is nothing to confuse it with.
        """
        ledger = ledger_of(store)
        if self._namespace is not None:
            there = await ledger.namespaces()
            if there and self._namespace not in there:
                raise JobNotFound(
                    f"nothing was ever stored in namespace {self._namespace!r}; the namespaces here"
                    f" are {listed(there)}{did_you_mean(self._namespace, there)}"
                )
        return ledger

    async def _opened(self, durability: Durability | None) -> Store:
        store = self.connect() if durability is None else self._connect(durability, False)
        try:
            await store.open()
        except BaseException:
            await store.close()
            raise
        return store


async def moved_to(store: Store) -> str | None:
    """Where else the store's jobs are now, or None: an empty count is then no good news."""
    if offers(store, Movable) and (mark := await store.departure()) is not None:
        return f"were moved to {mark.to}, or are on their way: look there"
    return None


def warn_of_password(screen: Screen, url: str | None) -> None:
    """Say what is wrong with a URL of the command line that holds a password."""
    if url and has_password(url):
        screen.note(
            "Warning: a password on the command line can be read by every user of this machine"
            " (in the list of processes); put the URL into OUTLAST_URL or OUTLAST_URL_FILE."
        )


def store_options(
    command: Callable[..., T],
) -> Callable[..., T]:
    """Give a command the options that name its store, and a ``Target`` as first argument."""

    @click.option("--url", metavar="URL", help="The store; a password is better in OUTLAST_URL.")
    @click.option("--app", metavar="MODULE:APP", help="Take the store of this app.")
    @click.option("--namespace", metavar="NAME", help="Jobs of this namespace (default: default).")
    @click.pass_obj
    @functools.wraps(command)
    def wrapped(
        screen: Screen,
        /,
        *args: Any,
        url: str | None,
        app: str | None,
        namespace: str | None,
        **options: Any,
    ) -> T:
        return command(Target(screen, url, app, namespace), *args, **options)

    return wrapped


async def known_queue(ledger: Ledger, queue: str) -> Sequence[Line]:
    """The lines of a queue. Raises ``JobNotFound`` naming those there are if it was never used."""
    lines = await ledger.lines()
    found = [line for line in lines if line.queue == queue]
    if not found:
        there = {line.queue for line in lines}
        raise JobNotFound(
            f"no queue {queue!r}: the queues here are {listed(there)}{did_you_mean(queue, there)}"
        )
    return found
