"""kombu's own integration tests, made for its transports to inherit: run on ours by theirs.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kombu
import pytest
from t.integration import common

import outlast.contrib.kombu  # noqa: F401  kombu alone reads no entry points before a URL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    with kombu.Connection(f"outlast+sqlite:///{tmp_path}/app.db") as connection:
        yield connection


@pytest.fixture
def invalid_connection() -> Any:
    return kombu.Connection("outlast+sqlite:////proc/nowhere/app.db")


class test_Basic(common.BasicFunctionality):
    pass


class test_ExchangeTypes(common.BaseExchangeTypes):
    pass


class test_Priority(common.BasePriority):
    pass


class test_Message(common.BaseMessage):
    pass


class test_EventLoop(common.BaseEventLoop):
    pass


class test_TimeToLive(common.BaseTimeToLive):
    pass
