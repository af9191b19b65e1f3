"""What time a store on PostgreSQL thinks it is: its connections agree."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from outlast.clock import SystemClock
from outlast.stores.postgres import servertime
from outlast.stores.postgres.servertime import ServerTime


class Answers:
    """A server's clock as it is heard: each reading reaches the reader so much later."""

    def __init__(self, here: list[float], ahead: float, late: float = 0.0) -> None:
        self.here, self.ahead, self.late = here, ahead, late

    async def fetchval(self, _: str) -> float:
        answer = self.here[0] + self.ahead
        self.here[0] += self.late
        return answer


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(servertime, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def read(clock: ServerTime, connection: Any) -> float:
    now, lease = asyncio.run(clock.read(connection))
    assert now == lease
    return now


def test_a_late_answer_does_not_turn_the_time_back(here: list[float]) -> None:
    clock = ServerTime(SystemClock())
    assert read(clock, Answers(here, 50.0)) == 1050.0
    here[0] += 1.5
    assert read(clock, Answers(here, 50.0, late=0.4)) == 1051.5, "as it was when it was read"
    here[0] += 1.5
    assert read(clock, Answers(here, 49.9)) == 1053.3, "no promptness makes up for what isn't so"
    clock.forget()
    assert read(clock, Answers(here, 49.5)) == 1053.3, "it stands still until it is caught up with"
    here[0] += 0.5
    assert read(clock, Answers(here, 49.5)) == pytest.approx(1053.4)


def test_connections_share_a_reading(here: list[float]) -> None:
    clock = ServerTime(SystemClock())
    first = read(clock, Answers(here, 50.0))
    here[0] += 0.001
    assert read(clock, Answers(here, 49.8, late=0.2)) == pytest.approx(first + 0.001)


def test_a_server_whose_clock_was_set_back_is_believed(here: list[float]) -> None:
    clock = ServerTime(SystemClock())
    read(clock, Answers(here, 50.0))
    here[0] += 2
    assert read(clock, Answers(here, -3600.0)) == here[0] - 3600.0
