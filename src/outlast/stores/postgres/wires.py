"""Connections of the caller's own, each driver's in the one form that our statements need.

Known by their classes' names, so that no driver is imported that the program does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from outlast.errors import ConfigurationError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AsyncpgWire", "Wire", "wire_of"]

_IN_TRANSACTION, _FAILED = 2, 3
"""What libpq calls the states of a transaction."""


class Wire(Protocol):
    """A connection; ``fetch``, ``fetchval`` and ``execute`` are as asyncpg has them."""

    plain: bool
    """Whether it blocks, and none of these ever waits for an event loop."""
    key: Any
    """What stands for the connection itself."""

    async def ready(self) -> None:
        """Have a transaction begun, where the driver does so by itself at the first statement."""
        ...

    def in_transaction(self) -> bool:
        """Whether a transaction is open. Raises ``ConfigurationError`` for one that has failed."""
        ...

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]: ...
    async def fetchval(self, text: str, *values: Any) -> Any: ...
    async def execute(self, text: str, *values: Any) -> str: ...

    async def begin(self) -> None:
        """Begin a transaction. Raises ``ConfigurationError`` if one is open already."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...

    async def say(self, text: Any, values: Any) -> list[Any]:
        """A statement of the user's, with values as his driver takes them; its rows."""
        ...


class AsyncpgWire:
    """A connection of asyncpg's, or one that its pool has lent."""

    plain = False

    def __init__(self, connection: Any) -> None:
        self.key = self._connection = connection
        self.fetch = connection.fetch
        self.fetchval = connection.fetchval
        self.execute = connection.execute

    async def ready(self) -> None:
        """It begins none by itself."""

    def in_transaction(self) -> bool:
        return not self._connection.is_closed() and bool(self._connection.is_in_transaction())

    async def begin(self) -> None:
        if self.in_transaction():
            raise ConfigurationError(_OPEN)
        await self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")

    async def commit(self) -> None:
        # The server answers ROLLBACK, and no error, where a statement before has failed.
        if await self._connection.execute("COMMIT") != "COMMIT":
            raise ConfigurationError(_FAILED_BEFORE)

    async def rollback(self) -> None:
        if self.in_transaction():
            await self._connection.execute("ROLLBACK")

    async def say(self, text: Any, values: Any) -> list[Any]:
        return list(await self._connection.fetch(text, *values))


class _OfPsycopg:
    _connection: Any

    def in_transaction(self) -> bool:
        status = int(self._connection.info.transaction_status)
        if status == _FAILED:
            raise ConfigurationError(_FAILED_BEFORE)
        return status == _IN_TRANSACTION


class _PsycopgWire(_OfPsycopg):
    """A connection of psycopg's that blocks."""

    plain = True

    def __init__(self, connection: Any) -> None:
        from psycopg import RawCursor
        from psycopg.rows import tuple_row

        self.key = self._connection = connection
        self._cursor = RawCursor(connection, row_factory=tuple_row)

    async def ready(self) -> None:
        if not self._connection.autocommit and not self.in_transaction():
            self._cursor.execute("SELECT 1")

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        self._cursor.execute(text, values or None)
        return self._cursor.fetchall() if self._cursor.description else []

    async def fetchval(self, text: str, *values: Any) -> Any:
        return _first(await self.fetch(text, *values))

    async def execute(self, text: str, *values: Any) -> str:
        self._cursor.execute(text, values or None)
        return self._cursor.statusmessage or ""

    async def begin(self) -> None:
        if self.in_transaction():
            raise ConfigurationError(_OPEN)
        self._cursor.execute("BEGIN" if self._connection.autocommit else "SELECT 1")

    async def commit(self) -> None:
        self.in_transaction()  # psycopg commits nothing where a statement has failed
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()

    async def say(self, text: Any, values: Any) -> list[Any]:
        cursor = self._connection.execute(text, values or None)
        return list(cursor.fetchall()) if cursor.description else []


class _AsyncPsycopgWire(_OfPsycopg):
    """A connection of psycopg's that is awaited."""

    plain = False

    def __init__(self, connection: Any) -> None:
        from psycopg import AsyncRawCursor
        from psycopg.rows import tuple_row

        self.key = self._connection = connection
        self._cursor = AsyncRawCursor(connection, row_factory=tuple_row)

    async def ready(self) -> None:
        if not self._connection.autocommit and not self.in_transaction():
            await self._cursor.execute("SELECT 1")

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        await self._cursor.execute(text, values or None)
        return await self._cursor.fetchall() if self._cursor.description else []

    async def fetchval(self, text: str, *values: Any) -> Any:
        return _first(await self.fetch(text, *values))

    async def execute(self, text: str, *values: Any) -> str:
        await self._cursor.execute(text, values or None)
        return self._cursor.statusmessage or ""

    async def begin(self) -> None:
        if self.in_transaction():
            raise ConfigurationError(_OPEN)
        await self._cursor.execute("BEGIN" if self._connection.autocommit else "SELECT 1")

    async def commit(self) -> None:
        self.in_transaction()
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def say(self, text: Any, values: Any) -> list[Any]:
        cursor = await self._connection.execute(text, values or None)
        return list(await cursor.fetchall()) if cursor.description else []


class _Layered:
    """A connection or session of SQLAlchemy's: it begins and ends, the driver below it does."""

    def __init__(self, connection: Any, session: bool) -> None:
        self.key = self._connection = connection
        self._session = session
        self._below: Any = None

    def in_transaction(self) -> bool:
        return self._below is not None and bool(self._below.in_transaction())

    def _found(self, layer: Any) -> None:
        below = layer.driver_connection
        if self._below is None or self._below.key is not below:
            self._below = _driver(below)
            if self._below is None:
                raise Unsupported(
                    f"SQLAlchemy has the driver {type(below).__module__} below it: use"
                    " postgresql+asyncpg or postgresql+psycopg"
                )

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        found: Sequence[Any] = await self._below.fetch(text, *values)
        return found

    async def fetchval(self, text: str, *values: Any) -> Any:
        return await self._below.fetchval(text, *values)

    async def execute(self, text: str, *values: Any) -> str:
        done: str = await self._below.execute(text, *values)
        return done


class _SqlalchemyWire(_Layered):
    """One that blocks."""

    plain = True

    async def ready(self) -> None:
        connection = self._connection.connection() if self._session else self._connection
        connection.exec_driver_sql("SELECT 1")
        self._found(connection.connection)

    async def begin(self) -> None:
        if self._connection.in_transaction():
            raise ConfigurationError(_OPEN)
        self._connection.begin()
        await self.ready()

    async def commit(self) -> None:
        self.in_transaction()
        self._connection.commit()

    async def rollback(self) -> None:
        self._connection.rollback()

    async def say(self, text: Any, values: Any) -> list[Any]:
        connection = self._connection.connection() if self._session else self._connection
        run = connection.exec_driver_sql if isinstance(text, str) else connection.execute
        found = run(text, values or None)
        return list(found.all()) if found.returns_rows else []


class _AsyncSqlalchemyWire(_Layered):
    """One that is awaited."""

    plain = False

    async def ready(self) -> None:
        connection = await self._connection.connection() if self._session else self._connection
        await connection.exec_driver_sql("SELECT 1")
        self._found(await connection.get_raw_connection())

    async def begin(self) -> None:
        if self._connection.in_transaction():
            raise ConfigurationError(_OPEN)
        await self._connection.begin()
        await self.ready()

    async def commit(self) -> None:
        self.in_transaction()
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def say(self, text: Any, values: Any) -> list[Any]:
        connection = await self._connection.connection() if self._session else self._connection
        run = connection.exec_driver_sql if isinstance(text, str) else connection.execute
        found = await run(text, values or None)
        return list(found.all()) if found.returns_rows else []


_OPEN = "the connection is in a transaction already; it is begun and ended here"
_FAILED_BEFORE = (
    "a statement in this transaction has failed, so it can't be committed: roll it back"
)


def wire_of(connection: Any) -> Wire:
    """That connection, as our statements need it. Raises ``Unsupported`` for what is none."""
    found = _driver(connection)
    if found is None:
        for kind in type(connection).__mro__:
            if kind.__module__.partition(".")[0] == "sqlalchemy":
                if kind.__name__ in ("Connection", "Session"):
                    found = _SqlalchemyWire(connection, kind.__name__ == "Session")
                elif kind.__name__ in ("AsyncConnection", "AsyncSession"):
                    found = _AsyncSqlalchemyWire(connection, kind.__name__ == "AsyncSession")
                else:
                    continue
                break
    if found is None:
        raise Unsupported(
            f"{type(connection).__module__}.{type(connection).__qualname__} is no connection that"
            " jobs can be enqueued on: use one of asyncpg, psycopg 3 or SQLAlchemy"
        )
    return found


def _driver(connection: Any) -> Wire | None:
    for kind in type(connection).__mro__:
        package = kind.__module__.partition(".")[0]
        if package == "asyncpg" and kind.__name__ in ("Connection", "PoolConnectionProxy"):
            return AsyncpgWire(connection)
        if package == "psycopg" and kind.__name__ == "Connection":
            return _PsycopgWire(connection)
        if package == "psycopg" and kind.__name__ == "AsyncConnection":
            return _AsyncPsycopgWire(connection)
    return None


def _first(rows: Sequence[Any]) -> Any:
    return rows[0][0] if rows else None
