"""A run's transaction: rows of the user, steps, further jobs and the job's end, in one commit."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any, cast

from outlast.errors import LeaseLost, TaskError
from outlast.job import done
from outlast.store import Feature

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from outlast.job import Added, Claim, Job, Step, Verdict
    from outlast.store import Joining, Store
    from outlast.store import Transaction as Open

__all__ = ["MOST", "Transaction", "is_joined", "joined_here"]

MOST = 5.0
"""Seconds that a transaction may take, and half the lease: others wait for what it has locked."""

_here: contextvars.ContextVar[Transaction | None] = contextvars.ContextVar(
    "outlast.transaction", default=None
)


def joined_here(store: Store) -> Transaction | None:
    """The transaction that is open in this context, if it is one of that store's place."""
    found = _here.get()
    return found if found is not None and found.is_in(store) else None


def is_joined() -> bool:
    """Whether a transaction is open in this context, of whatever store."""
    found = _here.get()
    return found is not None and found.is_open


class Transaction:
    """``async with current().transaction() as tx``: see there.

    ``result`` is what the job will have returned.
    """

    __module__ = "outlast"

    def __init__(
        self,
        claim: Claim,
        store: Store,
        within: float,
        connection: Any,
        encode: Callable[[Any], bytes],
        committed: Callable[[Verdict], None],
    ) -> None:
        self.result: Any = None
        self._claim = claim
        self._store = store
        self._within = within
        self._connection = connection
        self._encode = encode
        self._committed = committed
        self._open: Open | None = None
        self._limit = asyncio.timeout(within)
        self._token: contextvars.Token[Transaction | None] | None = None

    async def __aenter__(self) -> Transaction:
        if Feature.JOIN not in self._store.features:
            raise TaskError(f"{self._store.url} has no transactions to share")
        joining = cast("Joining", self._store)
        self._open = await joining.begin(self._within, self._connection)
        self._token = _here.set(self)
        await self._limit.__aenter__()
        return self

    async def execute(self, text: str, values: Any = ()) -> list[Any]:
        """Run one statement of your own, in the store's file or database; its rows.

        The connection is outlast's, or the one that was given to ``transaction``.
        """
        return await self._opened().execute(text, values)

    @property
    def is_open(self) -> bool:
        """Whether it has begun and not ended."""
        return self._open is not None

    def is_in(self, store: Store) -> bool:
        mine = self._store
        return self._open is not None and (
            (store.url, getattr(store, "namespace", None))
            == (mine.url, getattr(mine, "namespace", None))
        )

    async def add(self, jobs: Sequence[Job]) -> Sequence[Added]:
        """Store jobs, if this transaction is committed."""
        return await self._opened().joined.add(jobs)

    async def remember(self, claim: Claim, step: Step) -> bool:
        """Store a step, if this transaction is committed."""
        return await self._opened().joined.remember(claim, step)

    def remember_now(self, claim: Claim, step: Step) -> bool:
        """The same, blocking."""
        return self._opened().joined.remember_now(claim, step)

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        """Send an event, if this transaction is committed."""
        return await self._opened().joined.emit(event, payload, keep)

    def _opened(self) -> Open:
        if self._open is None:
            raise TaskError("the transaction is not open: use it inside its `async with`")
        return self._open

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        opened = self._opened()
        if self._token is not None:
            _here.reset(self._token)
        try:
            # From here on it is not to be cut short by its own time.
            await self._limit.__aexit__(kind, error, trace)
            if error is None:
                await self._commit(opened)
        finally:
            self._open = None
            await opened.close()
        return None

    async def _commit(self, opened: Open) -> None:
        verdict = done(self._claim, self._encode(self.result))
        if await opened.joined.settle([verdict]):
            raise LeaseLost(
                f"job {self._claim.job.id} is another worker's by now: nothing was committed"
            )
        try:
            await opened.commit()
        except asyncio.CancelledError:
            self._committed(verdict)
            raise
        self._committed(verdict)
        await opened.joined.confirm()
