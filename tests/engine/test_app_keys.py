"""Keys with memory: where they come from, how long they are held, and what a repeat gets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes import FakeClock

from outlast import (
    ConfigurationError,
    JobCancelled,
    JobFailed,
    KeyConflict,
    KeyRepeated,
    Keys,
    Outlast,
    Status,
    Unsupported,
)
from outlast.job import DAY
from outlast.testing import drain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[Outlast]:
    url = f"sqlite:///{tmp_path}/jobs.db?durability=process"
    app = Outlast("memory://" if request.param == "memory" else url, clock=clock)
    async with app:
        yield app


async def test_from_the_arguments(app: Outlast) -> None:
    ran: list[int] = []

    @app.task(key=lambda order, cents=0: f"charge-{order}" if order else None)
    async def charge(order: int, cents: int = 0) -> int:
        ran.append(order)
        return cents

    first = await charge.enqueue(7, cents=5)
    again = await charge.enqueue(7, cents=5)
    assert (again.id, again.created) == (first.id, False)
    with pytest.raises(KeyConflict):
        await charge.enqueue(7, cents=6)
    assert (await charge.enqueue(0)).id != (await charge.enqueue(0)).id, "None is no key"
    assert charge.using(key="mine").call(7).job.key == "mine"
    assert charge.using(key=None).call(7).job.key is None
    assert charge.using(delay=3).call(7).job.key == "charge-7"
    assert charge.using(key=lambda order: f"x{order}").call(7).job.key == "x7"
    await drain(app)
    assert ran == [7, 0, 0]


async def test_a_repeat_gets_the_stored_outcome(app: Outlast, clock: FakeClock) -> None:
    @app.task(key=lambda n: str(n), keep=3600, keep_key=7 * DAY)
    async def halve(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n // 2

    await halve.enqueue(4)
    await halve.enqueue(5)
    await drain(app)
    clock.advance(7 * DAY - 1)
    await app.store.prune(100)
    again = await halve.enqueue(4)
    assert (again.created, await again.result(timeout=60)) == (False, 2)
    failed = await halve.enqueue(5)
    with pytest.raises(JobFailed, match="odd"):
        await failed.result(timeout=60)
    clock.advance(2)
    await app.store.prune(100)
    assert (await halve.enqueue(4)).created


async def test_for_ever(app: Outlast, clock: FakeClock) -> None:
    @app.task(key=lambda n: str(n), keep=3600, keep_key=None)
    async def once(n: int) -> int:
        return n

    first = await once.enqueue(1)
    await drain(app)
    clock.advance(3650 * DAY)
    await app.store.prune(100)
    again = await once.enqueue(1)
    assert (again.id, await again.result(timeout=60)) == (first.id, 1)


async def test_while_it_is_live(app: Outlast) -> None:
    @app.task(key=lambda n: str(n), keep_key="live")
    async def refresh(n: int) -> None: ...

    first = await refresh.enqueue(1)
    assert (await refresh.enqueue(1)).id == first.id
    await drain(app)
    assert (await refresh.enqueue(1)).created


async def test_while_it_is_queued(app: Outlast) -> None:
    again: list[bool] = []

    @app.task(key=lambda n: str(n), keep_key="queued")
    async def refresh(n: int) -> None:
        if len(again) < 2:
            again.append((await refresh.enqueue(n)).created)

    await refresh.enqueue(1)
    assert not (await refresh.enqueue(1)).created
    assert len(await drain(app)) == 3
    assert again == [True, True], "what changed while it ran is seen to by another run"


async def test_raise(app: Outlast) -> None:
    @app.task(key=lambda n: str(n), on_repeat="raise")
    async def once(n: int) -> None: ...

    first = await once.enqueue(1)
    with pytest.raises(KeyRepeated) as caught:
        await once.enqueue(1)
    assert caught.value.id == first.id
    assert not (await once.using(on_repeat="first").enqueue(1)).created


async def test_replace(app: Outlast) -> None:
    ran: list[str] = []

    @app.task(key=lambda page, text: page, on_repeat="replace")
    async def publish(page: str, text: str) -> None:
        ran.append(text)

    first = await publish.enqueue("home", "one")
    second = await publish.enqueue("home", "two")
    assert (second.created, await first.status()) == (True, Status.CANCELLED)
    with pytest.raises(JobCancelled, match=f"replaced by job {second.id}"):
        await first.result(timeout=60)
    await drain(app)
    assert (await publish.enqueue("home", "three")).created
    await drain(app)
    assert ran == ["two", "three"]


async def test_debounce_and_throttle(app: Outlast, clock: FakeClock) -> None:
    ran: list[tuple[str, float]] = []
    begun = clock.now()

    @app.task(key=lambda text: "index", on_repeat="debounce")
    async def index(text: str) -> None:
        ran.append((text, round(clock.now() - begun)))

    calm = index.using(delay=10)
    for n in range(4):
        await calm.enqueue(f"debounced {n}")
        clock.advance(5)
    clock.advance(4)
    assert await drain(app) == []
    clock.advance(1)
    await drain(app)
    eager = index.using(delay=10, on_repeat="throttle")
    begun = clock.now()
    for n in range(4):
        await eager.enqueue(f"throttled {n}")
        clock.advance(5)
        await drain(app)
    clock.advance(60)
    await drain(app)
    assert ran == [("debounced 3", 25), ("throttled 1", 10), ("throttled 3", 20)]


async def test_fifty_callers_at_once(app: Outlast) -> None:
    ran: list[int] = []

    @app.task(key=lambda n: f"k{n}")
    async def once(n: int) -> int:
        ran.append(n)
        return n

    handles = await asyncio.gather(*(once.enqueue(1) for _ in range(50)))
    assert len({handle.id for handle in handles}) == 1
    await drain(app)
    assert ran == [1]
    assert await asyncio.gather(*(handle.result(timeout=60) for handle in handles)) == [1] * 50


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"key": "k"}, r"key='k'.*using\(key"),
        ({"keep_key": "later"}, "keep_key='later'"),
        ({"on_repeat": "drop"}, "on_repeat='drop'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: Any, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        Outlast("memory://").task(**options)
    if "key" not in options:
        task = Outlast("memory://").task(key=lambda: "k")(_nothing)
        with pytest.raises(ConfigurationError, match=found):
            task.using(**options)


def test_windows_as_they_travel() -> None:
    app = Outlast("memory://")
    task = app.task(name="t")(_nothing)

    def of(**options: Any) -> tuple[float, bool]:
        job = task.using(key="k", **options).call().job
        return job.keep_key, job.key_queued

    assert of() == (DAY, False)
    assert of(on_repeat="raise") == (DAY, False)
    assert of(on_repeat="debounce") == (0.0, True)
    assert of(on_repeat="debounce", keep_key=5) == (5.0, False)
    assert of(keep_key="live") == (0.0, False)
    keyed = app.task(name="u", on_repeat="throttle", key=lambda: "k")(_nothing).call().job
    assert (keyed.keep_key, keyed.key_queued, keyed.on_repeat) == (0.0, True, "throttle")


async def test_what_is_signed_stays_what_it_was() -> None:
    keys = Keys(current="k1", secrets={"k1": bytes(32)}, seal=False)
    app = Outlast("memory://", keys=keys)
    task = app.task(name="t", key=lambda n: "k", on_repeat="debounce")(_with)
    async with app:
        with pytest.raises(Unsupported, match='on_repeat="replace"'):
            await task.enqueue(1)
        replacing = task.using(on_repeat="replace")
        await replacing.enqueue(1)
        await replacing.enqueue(2)
        [ended] = await drain(app)
        assert ended.status is Status.DONE


async def _nothing() -> None: ...


async def _with(n: int) -> None: ...
