"""What one transaction knows: the moment, the lines, and how many jobs it moves between states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.stores.postgres.schema import (
    CANCELLED,
    DEAD,
    DONE,
    HELD,
    READY,
    RUNNING,
    WAITING,
    lock_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outlast.stores.postgres.schema import Names

__all__ = ["LOG_INTO", "Lines", "Turn"]

_LINES = "SELECT id, queue, task FROM @lines"
_ADD_LINE = (
    "INSERT INTO @lines (queue, task) SELECT $1, $2 WHERE NOT EXISTS"
    " (SELECT 1 FROM @lines WHERE queue = $1 AND task IS NOT DISTINCT FROM $2)"
    " ON CONFLICT (queue, coalesce(task, '')) DO NOTHING"
)
_DURABLY = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit TO on"
LOG_INTO = "INSERT INTO @changes (line, ready, delayed, running, done, dead, cancelled)"
_LOG = (
    f"{LOG_INTO} SELECT * FROM unnest($1::int[], $2::int[], $3::int[], $4::int[], $5::int[],"
    " $6::int[], $7::int[])"
)
_COLUMN = {WAITING: 1, READY: 0, HELD: 0, RUNNING: 2, DONE: 3, DEAD: 4, CANCELLED: 5}


class Lines:
    """The lines of a namespace, as far as they are known. They are never deleted."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str | None], int] = {}
        self.names: dict[int, tuple[str, str | None]] = {}

    async def load(self, connection: Any, names: Names) -> None:
        for number, queue, task in await connection.fetch(names[_LINES]):
            self.ids[queue, task] = number
            self.names[number] = (queue, task)

    async def make(
        self, connection: Any, names: Names, wanted: Iterable[tuple[str, str | None]]
    ) -> None:
        """Have these lines exist, by a transaction of its own: a rollback must not undo it.

        Nor may a crash, whatever the role says of its commits: we go on with what we know of them.
        """
        unknown = {name for name in wanted if name not in self.ids}
        if not unknown:
            return
        await self.load(connection, names)
        unknown -= self.ids.keys()
        if unknown:
            await connection.execute(_DURABLY)
            for queue, task in sorted(unknown, key=str):
                await connection.execute(names[_ADD_LINE], queue, task)
            await connection.execute("COMMIT")
            await self.load(connection, names)


class Turn:
    """One transaction on one connection."""

    def __init__(
        self, connection: Any, names: Names, lines: Lines, now: float, mono: float
    ) -> None:
        self.connection = connection
        self.names = names
        self.lines = lines
        self.now = now
        self.epoch = 0
        """Higher than any before it that a lost claim may have been made under; 0 if not asked."""
        self.mono = mono
        """The time that leases are measured by."""
        self.due: float | None = None
        """When the next delayed job comes due, if a claim has looked and there is one."""
        self.news: dict[int, set[str]] = {}
        self.damaged: list[int] = []
        """Places of rows that were claimed and can't be read."""
        self._deltas: dict[int, list[int]] = {}

    async def fetch(self, text: str, *values: Any) -> list[Any]:
        found: list[Any] = await self.connection.fetch(self.names[text], *values)
        return found

    async def value(self, text: str, *values: Any) -> Any:
        return await self.connection.fetchval(self.names[text], *values)

    async def execute(self, text: str, *values: Any) -> int:
        """Run a statement; how many rows it touched."""
        done = await self.connection.execute(self.names[text], *values)
        return int(done.rpartition(" ")[2])

    async def lock(self, what: str) -> None:
        """Wait for a lock that is held until the end of the transaction."""
        number = lock_number(self.names.schema, what)
        await self.connection.execute("SELECT pg_advisory_xact_lock($1)", number)

    async def name(self, line: int) -> tuple[str, str | None]:
        """The queue and task of a line; no queue at all if somebody has made the line up."""
        found = self.lines.names.get(line)
        if found is None:
            await self.lines.load(self.connection, self.names)
            found = self.lines.names.get(line, ("", None))
        return found

    def tell(self, kind: int, queues: Iterable[str] = ()) -> None:
        """The commit will be news of this kind for those who wait at these queues."""
        self.news.setdefault(kind, set()).update(queues)

    def count(self, line: int, state: int, by: int) -> None:
        delta = self._deltas.get(line)
        if delta is None:
            delta = self._deltas[line] = [0] * 6
        delta[_COLUMN[state]] += by

    def moved(self, line: int, before: int, after: int, by: int = 1) -> None:
        self.count(line, before, -by)
        self.count(line, after, by)

    def queued(self, lines: Iterable[int]) -> int:
        """How many jobs more are queued in these lines than before this transaction."""
        deltas = [self._deltas[line] for line in lines if line in self._deltas]
        return sum(delta[0] + delta[1] for delta in deltas)

    def last_words(self) -> str:
        """Writes down what was counted, and commits: one way to the server and not two."""
        rows = [f"({line},{','.join(map(str, delta))})" for line, delta in self._counted()]
        if not rows:
            return "COMMIT"
        return f"{self.names[LOG_INTO]} VALUES {','.join(rows)}; COMMIT"

    def _counted(self) -> list[tuple[int, list[int]]]:
        return [(line, delta) for line, delta in self._deltas.items() if any(delta)]

    async def finish(self) -> None:
        """Write down what was counted; the last thing before COMMIT."""
        rows = [(line, *delta) for line, delta in self._counted()]
        if rows:
            # Lists: to psycopg a tuple is a row.
            columns = map(list, zip(*rows, strict=True))
            await self.connection.execute(self.names[_LOG], *columns)
