"""Tasks that may not run twice are found out, and their mended forms pass."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlast import ConfigurationError, Outlast, current
from outlast.testing import NotIdempotent, assert_idempotent

app = Outlast("memory://")
ledger: list[tuple[str, int]] = []
charged: dict[str, int] = {}
balance = {"it": 0}


@app.task(name="charge-naively")
async def charge_naively(amount: int) -> None:
    await asyncio.sleep(0)
    ledger.append(("charge", amount))
    await asyncio.sleep(0)


@app.task(name="charge-once")
async def charge_once(amount: int) -> None:
    await asyncio.sleep(0)
    charged.setdefault(current().idempotency_key, amount)
    await asyncio.sleep(0)


@app.task(name="count-naively")
def count_naively(by: int) -> int:
    old = balance["it"]
    balance["it"] = old + by
    return by


@app.task(name="count-safely")
def count_safely(to: int) -> int:
    if balance["it"] != to:
        balance["it"] = to
    return to


@app.task(name="cleans-up")
async def cleans_up() -> None:
    """Correct as long as nobody kills it while it waits."""
    try:
        ledger.append(("begun", 1))
        await asyncio.sleep(0)
    finally:
        ledger.remove(("begun", 1))


@app.task(name="never-well")
async def never_well() -> None:
    raise ValueError("no")


def clear() -> None:
    ledger.clear()
    charged.clear()
    balance["it"] = 0


def world() -> tuple[object, ...]:
    return (list(ledger), sorted(charged.values()), balance["it"])


async def test_a_naive_charge_is_found_out() -> None:
    with pytest.raises(NotIdempotent, match="charge-naively may not run twice") as caught:
        await assert_idempotent(app, charge_naively, (5,), observe=world, setup=clear)
    assert 'ledger.append(("charge", amount))' in str(caught.value)
    assert caught.value.line == charge_naively.fn.__code__.co_firstlineno + 3


async def test_a_charge_with_a_key_passes() -> None:
    assert await assert_idempotent(app, charge_once, (5,), observe=world, setup=clear) >= 4


async def test_a_plain_function() -> None:
    with pytest.raises(NotIdempotent) as caught:
        await assert_idempotent(app, count_naively, (2,), observe=world, setup=clear)
    assert caught.value.line == count_naively.fn.__code__.co_firstlineno + 3
    assert await assert_idempotent(app, count_safely, (2,), observe=world, setup=clear) >= 2


async def test_a_kill_runs_no_finally() -> None:
    with pytest.raises(NotIdempotent) as caught:
        await assert_idempotent(app, cleans_up, observe=world, setup=clear)
    assert caught.value.line == cleans_up.fn.__code__.co_firstlineno + 5


async def test_observing_and_setting_up_may_be_async() -> None:
    async def look() -> tuple[object, ...]:
        return world()

    async def prepare() -> None:
        clear()

    assert await assert_idempotent(app, charge_once, (5,), observe=look, setup=prepare)


async def test_a_task_that_does_not_end_well() -> None:
    with pytest.raises(ConfigurationError, match="does not end well by itself"):
        await assert_idempotent(app, never_well, observe=world, setup=clear)


@app.task(name="step-without-a-key")
async def step_without_a_key() -> None:
    await current().step("charge", ledger.append, ("charge", 1))


@app.task(name="step-with-a-key")
async def step_with_a_key() -> None:
    key = current().idempotency_key
    await current().step("charge", charged.setdefault, key, 1)
    await current().sleep(hours=6)
    await current().step("charge", charged.setdefault, f"later-{key}", 2)


@app.task(name="plain-step-without-a-key")
def plain_step_without_a_key() -> None:
    current().step_sync("charge", ledger.append, ("charge", 1))


@pytest.mark.parametrize("task", [step_without_a_key, plain_step_without_a_key])
async def test_a_step_can_be_cut_before_it_is_remembered(task: Any) -> None:
    with pytest.raises(NotIdempotent) as caught:
        await assert_idempotent(app, task, observe=world, setup=clear)
    assert caught.value.line == task.fn.__code__.co_firstlineno + 2


async def test_a_step_with_a_key_passes_also_when_it_sleeps() -> None:
    assert await assert_idempotent(app, step_with_a_key, observe=world, setup=clear) >= 8
