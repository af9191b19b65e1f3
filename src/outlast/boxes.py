"""An app's outbox and inbox in other databases than the store's, and the relay between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from outlast.outbox import AsyncInbox, Inbox, pen_of
from outlast.relay import relay
from outlast.running import current

if TYPE_CHECKING:
    from outlast.clock import Clock
    from outlast.desk import AsyncJoined, Awaited, Blocking, Desk, Joined
    from outlast.store import Store

__all__ = ["Boxes"]


class Boxes:
    """The part of the app that writes beside the rows of its user."""

    namespace: str
    _desk: Desk
    _clock: Clock

    if TYPE_CHECKING:

        def open_store(self, *, create: bool | None = None) -> Store: ...

    @overload
    def outbox(self, connection: Awaited) -> AsyncJoined: ...
    @overload
    def outbox(self, connection: Blocking) -> Joined: ...
    def outbox(self, connection: Any) -> Joined | AsyncJoined:
        """Enqueue beside your own rows in another database than the store's.

        What is enqueued is a row of ``outlast_outbox`` (``outbox_tables``) in the transaction of
        ``connection``: of sqlite3, apsw, asyncpg, psycopg or SQLAlchemy. ``relay`` moves it on,
        with the same id. The app need not be open.

        >>> jobs = app.outbox(connection)
        >>> handle = jobs.enqueue(send_receipt.call(42, to="a@b.example"))
        """
        return self._desk.outbox(connection, self.namespace, self._clock)

    @overload
    def inbox(self, connection: Awaited) -> AsyncInbox: ...
    @overload
    def inbox(self, connection: Blocking) -> Inbox: ...
    def inbox(self, connection: Any) -> Inbox | AsyncInbox:
        """Which jobs were applied already, as rows of your own transaction.

        ``connection`` as for ``outbox``; the table is ``outlast_inbox``.

        >>> if app.inbox(connection).is_new():
        ...     connection.execute("UPDATE stock SET n = n - 1 WHERE item = ?", (item,))
        """
        pen = pen_of(connection)
        kind = Inbox if pen.plain else AsyncInbox
        return kind(pen, self.namespace, _whose)

    async def relay(
        self, url: str, *, library: str = "sqlite3", create: bool = False, once: bool = False
    ) -> None:
        """Move jobs on from the outbox in the database at ``url``, until cancelled.

        With ``once``, what waits there now. ``library`` is what this process opens that SQLite file
        with elsewhere; ``create`` makes the tables. See ``outlast relay``.
        """
        await relay(self.open_store(), url, self.namespace, library, create=create, once=once)


def _whose() -> tuple[str, str]:
    """The task and the key of the job that runs here."""
    run = current()
    return run.task or "", run.idempotency_key
