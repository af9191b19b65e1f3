"""5. A key says that two calls are the same piece of work, so that it is accepted once."""

from __future__ import annotations

import asyncio

import pytest

from outlast import KeyConflict, Outlast, current

app = Outlast("memory://")
charged: list[str] = []


@app.task
async def charge(order: int, cents: int = 100) -> str:
    # A job may run more than once: a worker can die after the work and before saying so. This text
    # is the same in every run, so a payment service that takes it will not charge twice.
    charged.append(current().idempotency_key)
    return f"order {order}: {cents}"


@pytest.fixture(autouse=True)
def _nothing_charged() -> None:
    charged.clear()


async def test_the_same_key_is_the_same_job() -> None:
    async with app.worker():
        first = await charge.using(key="order-1").enqueue(1)
        again = await charge.using(key="order-1").enqueue(1)
        assert (first.created, again.created) == (True, False)
        assert again.id == first.id
        assert await again.result(timeout=60) == "order 1: 100"

        # Also when it has ended: a key is remembered for a day, or as long as `keep_key=` says.
        late = await charge.using(key="order-1").enqueue(1)
        assert (late.created, late.id) == (False, first.id)
    assert charged == ["order-1"]


async def test_fifty_callers_at_once_are_one_job() -> None:
    async with app.worker():
        keyed = charge.using(key="order-2")
        handles = await asyncio.gather(*(keyed.enqueue(2) for _ in range(50)))
        assert len({handle.id for handle in handles}) == 1
        await handles[0].result(timeout=60)
    assert charged == ["order-2"]


async def test_the_same_key_with_other_arguments_is_a_mistake() -> None:
    async with app.worker():
        handle = await charge.using(key="order-3").enqueue(3, cents=500)
        with pytest.raises(KeyConflict, match="order-3"):
            await charge.using(key="order-3").enqueue(3, cents=999)
        assert await handle.result(timeout=60) == "order 3: 500"


async def test_without_a_key_every_call_is_a_job() -> None:
    async with app.worker():
        first, second = await charge.enqueue(4), await charge.enqueue(4)
        assert first.id != second.id
        await first.result(timeout=60)
        await second.result(timeout=60)
    assert charged == [first.id, second.id]  # then the key is the job's id
