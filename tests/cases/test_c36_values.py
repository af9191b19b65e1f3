"""C36: tuples arrive as lists, integer keys as strings, dates as datetimes."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from outlast import Outlast

if TYPE_CHECKING:
    from pathlib import Path

VALUES: list[tuple[Any, Any]] = [
    ((1, (2, 3)), tuple[int, tuple[int, int]]),
    ({0: "a"}, dict[int, str]),
    (date(2024, 2, 29), date),
    (datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), datetime),
    (Decimal("0.10"), Decimal),
    (UUID(int=7), UUID),
    (bytes(range(256)), bytes),
    ({3, 1, 2}, set[int]),
    (2**70, int),
    ("\N{GRINNING FACE}", str),
]


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
@pytest.mark.parametrize(("value", "annotation"), VALUES)
async def test_c36(scheme: str, value: Any, annotation: Any, tmp_path: Path) -> None:
    app = Outlast("memory://" if scheme == "memory" else f"sqlite:///{tmp_path / 'c36.db'}")

    async def annotated(it: Any) -> Any:
        return it, repr(it)

    annotated.__annotations__ = {"it": annotation, "return": tuple[annotation, str]}
    task = app.task(name="annotated")(annotated)

    @app.task(name="plain")
    async def plain(it) -> str:  # type: ignore[no-untyped-def]
        return f"{type(it).__name__} {it!r}"

    async with app, app.worker():
        found, text = await (await task.enqueue(value)).result(timeout=60)
        assert (type(found), found, text) == (type(value), value, repr(value))
        if type(value) in (int, str):
            answer = await (await plain.enqueue(value)).result(timeout=60)
            assert answer == f"{type(value).__name__} {value!r}"
        else:
            with pytest.raises(TypeError, match="'it'"):
                await plain.enqueue(value)


async def test_c36_nan() -> None:
    app = Outlast("memory://")

    @app.task(name="number")
    async def number(it: float) -> None:
        pass

    async with app:
        with pytest.raises(TypeError, match="'it'"):
            await number.enqueue(float("nan"))
