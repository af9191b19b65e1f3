"""11. What can travel: a value arrives as it was sent, or the call is refused. Never in between."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from outlast import Durability, EncodeError, Outlast

if TYPE_CHECKING:
    from pathlib import Path


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True)
class Item:
    name: str
    size: Size
    parts: tuple[int, ...]


VALUES: dict[str, tuple[Any, Any]] = {
    "tuple": (tuple[int, tuple[int, int]], (1, (2, 3))),
    "int keys": (dict[int, str], {0: "a", -7: "b"}),
    "date": (date, date(2024, 2, 29)),
    "time": (time, time(23, 59, 59, 999999)),
    "zone": (datetime, datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))),
    "utc": (datetime, datetime(2024, 7, 1, 12, tzinfo=UTC)),
    "naive": (datetime, datetime(2024, 7, 1, 12)),
    "span": (timedelta, timedelta(days=-1, microseconds=1)),
    "decimal": (Decimal, Decimal("0.10")),
    "uuid": (UUID, UUID(int=7)),
    "bytes": (bytes, bytes(range(256))),
    "set": (set[int], {3, 1, 2}),
    "frozen set": (frozenset[str], frozenset({"b", "a"})),
    "big int": (int, 2**70),
    "emoji": (str, "🦊\u200d🔥"),
    "float": (float, 0.1 + 0.2),
    "none": (int | None, None),
    "enum": (Size, Size.LARGE),
    "dataclass": (list[Item], [Item("nail", Size.SMALL, (1, 2))]),
}


def shown(value: Any) -> str:
    """Its type and what it is; equal sets are shown alike, whatever order theirs is."""
    return f"{type(value)} {sorted(value) if isinstance(value, set | frozenset) else value!r}"


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Outlast:
    if request.param == "memory":
        return Outlast("memory://")
    return Outlast(f"sqlite:///{tmp_path}/shop.db", durability=Durability.PROCESS)


@pytest.mark.parametrize("name", VALUES)
async def test_a_value_arrives_as_it_was_sent(app: Outlast, name: str) -> None:
    annotation, value = VALUES[name]

    async def look(sent):  # type: ignore[no-untyped-def]
        return shown(sent)

    async def echo(sent):  # type: ignore[no-untyped-def]
        return sent

    look.__annotations__ = {"sent": annotation, "return": str}
    echo.__annotations__ = {"sent": annotation, "return": annotation}
    look_at, send_back = app.task(name="look")(look), app.task(name="echo")(echo)
    async with app.worker():
        seen = await look_at.enqueue(value)
        assert await seen.result(timeout=60) == shown(value)
        sent_back = await (await send_back.enqueue(value)).result(timeout=60)
    assert shown(sent_back) == shown(value)


@pytest.mark.parametrize(
    "value",
    [(1, 2), {0: "a"}, {1, 2}, date(2024, 2, 29), b"bytes", float("nan"), object(), Size.SMALL],
    ids=lambda value: type(value).__name__,
)
async def test_without_an_annotation_what_json_would_change_is_refused(
    app: Outlast, value: Any
) -> None:
    @app.task(name="unannotated")
    async def unannotated(sent):  # type: ignore[no-untyped-def]
        return sent

    async with app:
        with pytest.raises(EncodeError, match="'sent'"):
            await unannotated.enqueue(value)
        assert (await app.store.depth("default")).live == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_is_refused_everywhere(app: Outlast, value: float) -> None:
    @app.task(name="number")
    async def number(sent: float) -> None: ...

    with pytest.raises(EncodeError, match="'sent'"):
        number.call(value)
