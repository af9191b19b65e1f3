"""From a call to a stored job: what is stored, in how many writes, and what is refused."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.engine.by_hand import work
from tests.fakes import FakeClock

from outlast import (
    Call,
    ConfigurationError,
    EncodeError,
    Feature,
    KeyConflict,
    Outlast,
    StoreClosed,
    Unsupported,
)
from outlast.stores.memory.registry import Registry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from outlast import Job, Task
    from outlast.job import Added

runs: list[str] = []


def make(url: str) -> Outlast:
    app = Outlast(url)

    @app.task(name="send", retry=4, timeout=30, priority=5, queue="default", headers={"by": "us"})
    async def send(order: int, to: str = "a@b.example") -> str:
        runs.append(f"{order} {to}")
        return f"sent {order}"

    @app.task(name="plain")
    async def plain(order: int, note: str = "") -> int:
        return order

    return app


@pytest.fixture(params=["memory", "sqlite"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Outlast]:
    runs.clear()
    app = make(
        "memory://"
        if request.param == "memory"
        else f"sqlite:///{tmp_path}/jobs.db?durability=process"
    )
    async with app:
        yield app


def send_of(app: Outlast) -> Task[..., str]:
    return app.tasks["send"]


async def count(app: Outlast) -> int:
    return (await app.store.depth("default")).live


async def test_a_call_becomes_a_job_with_the_task_s_options(app: Outlast) -> None:
    handle = await send_of(app).enqueue(42, to="c@d.example")
    assert handle.created
    job = await handle.job()
    assert job.id == handle.id
    assert msgspec.json.decode(job.payload) == {"order": 42, "to": "c@d.example"}
    assert (job.task, job.queue, job.codec) == ("send", "default", "json")
    assert (job.max_attempts, job.timeout, job.priority) == (4, 30.0, 5)
    assert dict(job.headers) == {"by": "us"}
    assert job.key is None


async def test_wrong_arguments_raise_here_and_store_nothing(app: Outlast) -> None:
    send = send_of(app)
    with pytest.raises(EncodeError, match="order"):
        await send.enqueue()
    with pytest.raises(EncodeError, match="order"):
        await send.enqueue("42")
    with pytest.raises(EncodeError, match="cc"):
        await send.enqueue(42, cc="c@d.example")
    with pytest.raises(TypeError):
        await send.enqueue(42, to=None)
    with pytest.raises(EncodeError, match="order"):
        send.call(float("nan"))
    assert await count(app) == 0


async def test_call_stores_nothing_and_its_id_is_the_job_s(app: Outlast) -> None:
    call = send_of(app).call(1)
    assert await count(app) == 0
    (handle,) = await app.enqueue_many([call])
    assert handle.id == call.job.id


async def test_storing_a_call_again_is_one_job(app: Outlast) -> None:
    """After an EnqueueUncertain, say."""
    call = send_of(app).call(1)
    first, again = await app.enqueue_many([call]), await app.enqueue_many([call])
    assert [handle.created for handle in first + again] == [True, False]
    assert first[0].id == again[0].id
    assert await count(app) == 1


async def test_an_id_that_is_taken_by_other_arguments_is_a_conflict(app: Outlast) -> None:
    call = send_of(app).call(1)
    await app.enqueue_many([call])
    other = Call(call.model, call.task, call.id, b'{"order":2}')
    with pytest.raises(KeyConflict, match=call.job.id):
        await app.enqueue_many([other])
    assert await count(app) == 1


async def test_a_batch_is_one_write_and_handles_are_aligned(
    app: Outlast, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    add = app.store.add

    async def counted(jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        writes.append(len(jobs))
        return await add(jobs, capacity)

    monkeypatch.setattr(app.store, "add", counted)
    send = send_of(app).using(key="two")
    calls = [send_of(app).call(1), send.call(2), send.call(2), send_of(app).call(3)]
    handles = await app.enqueue_many(calls)
    assert writes == [4]
    assert [handle.created for handle in handles] == [True, True, False, True]
    assert [handle.id for handle in handles] == [
        calls[0].job.id, calls[1].job.id, calls[1].job.id, calls[3].job.id,
    ]  # fmt: skip


async def test_a_batch_is_all_or_none(app: Outlast) -> None:
    send = send_of(app)
    await send.using(key="k").enqueue(1)
    with pytest.raises(KeyConflict, match="k"):
        await app.enqueue_many([send.call(7), send.using(key="k").call(2), send.call(8)])
    assert await count(app) == 1


async def test_an_empty_batch_is_no_job(app: Outlast) -> None:
    assert await app.enqueue_many([]) == []
    assert await app.enqueue_many(send_of(app).call(n) for n in range(0)) == []


async def test_a_generator_of_calls_will_do(app: Outlast) -> None:
    assert len(await app.enqueue_many(send_of(app).call(n) for n in range(3))) == 3


async def test_what_is_no_call_of_this_app_is_refused(app: Outlast) -> None:
    with pytest.raises(ConfigurationError, match=r"task\.call"):
        await app.enqueue_many([send_of(app)])  # type: ignore[arg-type]
    other = make("memory://")
    with pytest.raises(ConfigurationError, match="another Outlast"):
        await app.enqueue_many([send_of(app).call(1), send_of(other).call(1)])
    assert await count(app) == 0


async def test_before_the_app_is_open_and_after_it_the_error_says_what_to_do() -> None:
    app = make("memory://")
    with pytest.raises(StoreClosed, match="async with app"):
        await send_of(app).enqueue(1)
    with pytest.raises(StoreClosed, match="async with app"):
        await app.enqueue_many([])
    async with app:
        handle = await send_of(app).enqueue(1)
    with pytest.raises(StoreClosed, match="async with app"):
        await handle.status()


async def test_a_private_memory_store_is_one_store_however_often_it_is_opened() -> None:
    app, other = make("memory://"), make("memory://")
    async with app:
        await send_of(app).enqueue(1)
    async with app, other:
        assert await count(app) == 1
        assert await count(other) == 0


def test_a_private_memory_store_goes_with_its_app() -> None:
    app = make("memory://")
    name = (app.url or "").removeprefix("memory://")
    send_of(app).enqueue_sync(1)
    assert name in Registry._private
    app._access.bridge.stop()
    del app
    gc.collect()
    assert name not in Registry._private
    assert name not in Registry._named


class TestKeys:
    """C38 and its neighbours: the same key is the same job, and never a silent nothing."""

    async def test_while_it_is_queued(self, app: Outlast) -> None:
        keyed = send_of(app).using(key="receipt-42")
        first, again = await keyed.enqueue(42), await keyed.enqueue(42)
        assert (first.created, again.created) == (True, False)
        assert again.id == first.id
        assert (await again.job()).key == "receipt-42"

    async def test_after_its_end_within_the_time_it_is_remembered(self, app: Outlast) -> None:
        keyed = send_of(app).using(key="receipt-42")
        first = await keyed.enqueue(42)
        assert await work(app) == 1
        again = await keyed.enqueue(42)
        assert (again.created, again.id) == (False, first.id)
        assert await work(app) == 0
        assert await again.result(timeout=60) == "sent 42"
        assert runs == ["42 a@b.example"]

    async def test_fifty_callers_at_once_make_one_job(self, app: Outlast) -> None:
        keyed = send_of(app).using(key="fresh")
        handles = await asyncio.gather(*(keyed.enqueue(42) for _ in range(50)))
        assert len({handle.id for handle in handles}) == 1
        assert sum(handle.created for handle in handles) == 1
        while await work(app):
            pass
        assert runs == ["42 a@b.example"]

    async def test_other_arguments_are_a_conflict(self, app: Outlast) -> None:
        keyed = send_of(app).using(key="k")
        await keyed.enqueue(42)
        with pytest.raises(KeyConflict, match="'k'"):
            await keyed.enqueue(43)
        assert await count(app) == 1

    async def test_how_arguments_are_passed_does_not_count(self, app: Outlast) -> None:
        keyed = send_of(app).using(key="k")
        first = await keyed.enqueue(42, "c@d.example")
        assert (await keyed.enqueue(to="c@d.example", order=42)).id == first.id

    async def test_when_and_where_does_not_count(self, app: Outlast) -> None:
        keyed = send_of(app).using(key="k")
        first = await keyed.enqueue(42)
        later = keyed.using(delay=60, priority=-7, queue="slow", timeout=1, headers={"a": "b"})
        again = await later.enqueue(42)
        assert (again.created, again.id) == (False, first.id)

    async def test_keys_belong_to_a_task(self, app: Outlast) -> None:
        first = await send_of(app).using(key="k").enqueue(1)
        second = await app.tasks["plain"].using(key="k").enqueue(2)
        assert second.created
        assert second.id != first.id

    async def test_no_digest_without_a_key(self, app: Outlast) -> None:
        assert send_of(app).call(1).job.digest == b""
        assert len(send_of(app).using(key="k").call(1).job.digest) == 16


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_key_is_forgotten_after_its_time(kind: str, tmp_path: Path) -> None:
    """C38 (b), with the clock moved instead of waiting."""
    clock = FakeClock()
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db?durability=process"
    app = Outlast(url, clock=clock)

    @app.task(name="tick", keep_key=3600)
    async def tick(n: int) -> int:
        return n

    async with app:
        keyed = tick.using(key="k")
        first = await keyed.enqueue(1)
        await work(app)
        clock.advance(3599)
        assert (await keyed.enqueue(1)).id == first.id
        clock.advance(2)
        await app.store.prune(100)
        second = await keyed.enqueue(1)
        assert second.created
        assert await work(app) == 1


class TestLanes:
    async def test_a_text_or_a_function_of_the_arguments(self) -> None:
        app = Outlast("memory://")

        @app.task(lane=lambda order, to="": f"customer-{to}")
        async def ship(order: int, to: str = "") -> None: ...

        @app.task(lane="one")
        async def print_label(order: int) -> None: ...

        assert ship.call(1, to="ann").job.lane == "customer-ann"
        assert ship.using(lane="fixed").call(1, to="ann").job.lane == "fixed"
        assert ship.using(lane=None).call(1, to="ann").job.lane is None
        assert ship.using(delay=3).call(1, to="ann").job.lane == "customer-ann"
        assert print_label.call(1).job.lane == "one"
        assert print_label.using(lane=lambda order: str(order)).call(7).job.lane == "7"

    async def test_a_lane_that_is_no_lane_is_refused_at_enqueue(self, app: Outlast) -> None:
        plain = app.tasks["plain"]
        with pytest.raises(ConfigurationError, match="lane"):
            await plain.using(lane=lambda order, note="": "").enqueue(1)
        with pytest.raises(ConfigurationError, match="lane= function gave 7"):
            await plain.using(lane=lambda order, note="": 7).enqueue(1)  # type: ignore[arg-type,return-value]
        assert await count(app) == 0


class TestStoresThatCanDoLess:
    """What a store can't do is refused when the task is made or the app opens, not when it runs."""

    @pytest.fixture
    def poor(self, monkeypatch: pytest.MonkeyPatch) -> Outlast:
        app = Outlast("memory://")
        from outlast.stores.memory import MemoryStore

        monkeypatch.setattr(MemoryStore, "features", Feature.INSPECT | Feature.RESULTS)
        return app

    async def test_when_the_app_opens(self, poor: Outlast) -> None:
        @poor.task(name="urgent", priority=3)
        async def urgent() -> None: ...

        with pytest.raises(Unsupported, match=r"urgent.*priority="):
            await poor.open()

    async def test_when_a_task_is_made_later(self, poor: Outlast) -> None:
        async with poor:
            with pytest.raises(Unsupported, match=r"again.*attempt"):

                @poor.task(name="again", retry=3)
                async def again() -> None: ...

            assert "again" not in poor.tasks

    @pytest.mark.parametrize(
        "option",
        [
            {"delay": 1},
            {"priority": 1},
            {"key": "k"},
            {"lane": "l"},
            {"retry": 2},
            {"lane": lambda: "l"},
        ],
    )
    async def test_when_a_call_asks_for_it(self, poor: Outlast, option: dict[str, object]) -> None:
        @poor.task(name="simple")
        async def simple() -> None: ...

        early = simple.using(**option)  # type: ignore[arg-type]
        async with poor:
            await simple.enqueue()
            with pytest.raises(Unsupported, match="simple"):
                simple.using(**option)  # type: ignore[arg-type]
            with pytest.raises(Unsupported, match="simple"):
                await early.enqueue()
            with pytest.raises(Unsupported, match="simple"):
                await app_many(poor, simple, early)
            assert (await poor.store.depth("default")).live == 1


async def app_many(app: Outlast, *tasks: Task[[], None]) -> None:
    await app.enqueue_many([task.call() for task in tasks])
