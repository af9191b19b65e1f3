"""What no store may take, and that nothing of its batch is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import add, job

from outlast.errors import ConfigurationError
from outlast.job import Job

if TYPE_CHECKING:
    from tests.conformance.steps import FullStore

NAN, INF = float("nan"), float("inf")

BAD: list[tuple[str, Any]] = [
    ("id", ""),
    ("id", "x" * 129),
    ("id", "a\0b"),
    ("id", "\ud800"),
    ("queue", ""),
    ("queue", "a b"),
    ("queue", "a/b"),
    ("queue", "a\n"),
    ("queue", "ä"),
    ("queue", "x" * 129),
    ("task", ""),
    ("task", "a b"),
    ("task", "x" * 129),
    ("key", ""),
    ("key", "x" * 513),
    ("key", "a\0b"),
    ("key", "\udfff"),
    ("lane", ""),
    ("lane", "x" * 513),
    ("lane", "a\0b"),
    ("priority", 101),
    ("priority", -101),
    ("priority", 1.5),
    ("priority", True),
    ("priority", NAN),
    ("delay", -1.0),
    ("delay", NAN),
    ("delay", INF),
    ("ttl", -0.5),
    ("ttl", NAN),
    ("ttl", INF),
    ("run_at", NAN),
    ("run_at", INF),
    ("run_at", -INF),
    ("expires_at", NAN),
    ("expires_at", INF),
    ("keep", -1.0),
    ("keep", NAN),
    ("keep", INF),
    ("keep_key", -1.0),
    ("keep_key", NAN),
    ("keep_key", INF),
    ("timeout", 0.0),
    ("timeout", -1.0),
    ("timeout", NAN),
    ("timeout", INF),
    ("max_attempts", 0),
    ("max_crashes", 0),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda each: ascii(each)[:20])
async def test_refused(store: FullStore, field: str, value: Any) -> None:
    bad = Job(**{"id": "bad", field: value})
    with pytest.raises(ConfigurationError, match=field) as caught:
        await store.add([job("good"), bad])
    str(caught.value).encode()
    assert len(str(caught.value)) < 300
    assert list(await store.get(["good"])) == [None]
    assert (await store.depth("default")).live == 0


GOOD: list[dict[str, Any]] = [
    {"id": "x" * 128},
    {"id": "\N{SNOWMAN} \N{GRINNING FACE}"},
    {"queue": "x" * 128, "task": "Shop.mail_v2:send-it"},
    {"key": "x" * 512},
    {"key": "\N{GRINNING FACE}\n\t'\"%s"},
    {"lane": "customer 42; DROP TABLE jobs"},
    {"priority": -100, "delay": 0, "ttl": 0.001, "keep": 0, "keep_key": 0, "timeout": 1e-6},
    {"run_at": -1e12, "expires_at": 1e300},
    {"max_attempts": 10**9, "max_crashes": 10**9},
    {"payload": b"", "headers": {"": "", "\0": "\N{SNOWMAN}"}, "rank": bytes(256)},
    {"payload": b"\xff\xfe" * 1000, "key": "k", "digest": bytes(range(16))},
]


@pytest.mark.parametrize("fields", GOOD, ids=lambda fields: "-".join(fields))
async def test_accepted(store: FullStore, fields: dict[str, Any]) -> None:
    made = Job(**({"id": "good"} | fields))
    await add(store, made)
    [found] = await store.get([made.id])
    assert found is not None
    for field, value in fields.items():
        if field not in ("delay", "ttl"):
            assert getattr(found, field) == value
