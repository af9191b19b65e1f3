"""What a task can do while it runs, and what can be done to it."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers import RedisServer, shared

from outlast import JobFailed, current
from outlast.contrib.celery.compat import (
    Celery,
    ChordError,
    Ignore,
    MaxRetriesExceededError,
    Reject,
    TaskRevokedError,
    chain,
    chord,
    group,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Any:
    name = request.node.name.replace("_", "-")[:60]
    return Celery("shop", broker=f"memory://{name}", set_as_current=False)


def task(app: Any, fn: Callable[..., Any], **options: Any) -> Any:
    return app.task(name=f"shop.{fn.__name__}", **options)(fn)


async def got(result: Any) -> Any:
    return await asyncio.to_thread(result.get, timeout=PATIENCE)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):
            pass


async def test_states_of_its_own(app: Any) -> None:
    go = threading.Event()

    def upload(self: Any, names: list[str]) -> str:
        for at, _ in enumerate(names):
            if not self.request.called_directly:
                self.update_state(state="PROGRESS", meta={"current": at, "total": len(names)})
        assert go.wait(PATIENCE)
        return "done"

    made = task(app, upload, bind=True)
    async with app.outlast.worker():
        result = await asyncio.to_thread(made.delay, ["a", "b"])
        await until(lambda: result.state == "PROGRESS")
        await until(lambda: result.info == {"current": 1, "total": 2})
        assert not await asyncio.to_thread(result.ready)
        go.set()
        assert await got(result) == "done"
        assert await asyncio.to_thread(lambda: result.state) == "SUCCESS"


async def test_what_waits_is_revoked_at_once(app: Any) -> None:
    ran: list[int] = []
    made = app.task(name="shop.run")(lambda n: ran.append(n))
    async with app.outlast:
        late = await asyncio.to_thread(lambda: made.apply_async((1,), countdown=3600))
        await asyncio.to_thread(app.control.revoke, late.id)
        assert await asyncio.to_thread(lambda: late.state) == "REVOKED"
        with pytest.raises(TaskRevokedError):
            await got(late)
    assert ran == []


async def test_it_is_not_run_after_it_expired(app: Any) -> None:
    ran: list[int] = []
    made = app.task(name="shop.run")(lambda n: ran.append(n))
    async with app.outlast:
        result = await asyncio.to_thread(lambda: made.apply_async((1,), expires=1e-9))
        async with app.outlast.worker():
            with pytest.raises(TaskRevokedError):
                await got(result)
    assert ran == []


async def test_waiting_for_a_result_inside_a_task_is_refused(app: Any) -> None:
    def inner() -> int:
        return 1

    def outer() -> int:
        return int(app.tasks["shop.inner"].delay().get(timeout=PATIENCE))

    task(app, inner)
    made = task(app, outer)
    async with app.outlast.worker():
        with pytest.raises(RuntimeError, match="chain or a chord"):
            await got(await asyncio.to_thread(made.delay))


async def test_ignore_and_reject(app: Any) -> None:
    times: list[int] = []

    def ignored() -> None:
        raise Ignore

    def rejected() -> None:
        raise Reject("no", requeue=False)

    def later() -> int:
        times.append(1)
        if len(times) == 1:
            raise Reject("not now", requeue=True)
        return len(times)

    async with app.outlast.worker():
        assert await got(await asyncio.to_thread(task(app, ignored).delay)) is None
        with pytest.raises(TaskRevokedError, match="rejected: no"):
            await got(await asyncio.to_thread(task(app, rejected).delay))
        assert await got(await asyncio.to_thread(task(app, later).delay)) == 2


async def test_retries_by_the_tasks_own_rules(app: Any) -> None:
    seen: list[tuple[str, Any]] = []

    def again(self: Any, most: int) -> None:
        seen.append(("run", self.request.retries))
        self.retry(countdown=0.001, max_retries=most)

    class Watched(app.Task):
        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            seen.append(("retry", args))

        def after_return(self, status: str, *rest: Any) -> None:
            seen.append(("after", status))

    made = task(app, again, bind=True, base=Watched)
    async with app.outlast.worker():
        with pytest.raises(MaxRetriesExceededError, match=r"again\["):
            await got(await asyncio.to_thread(made.delay, 1))
    assert seen == [
        ("run", 0), ("retry", [1]), ("after", "RETRY"), ("run", 1), ("after", "FAILURE"),
    ]  # fmt: skip


async def test_results_that_are_not_kept_still_go_on(app: Any) -> None:
    def add(x: int, y: int) -> int:
        return x + y

    made = task(app, add, ignore_result=True)
    last = app.task(name="shop.last")(lambda x: 10 * x)
    async with app.outlast.worker():
        assert await got(await asyncio.to_thread(made.delay, 1, 2)) is None
        flow = chain(made.s(1, 2), last.s())
        assert await got(await asyncio.to_thread(flow.delay)) == 30


async def test_a_job_has_ended_when_what_stands_in_for_it_has(app: Any) -> None:
    go, begun = threading.Event(), threading.Event()

    def hold() -> str:
        begun.set()
        assert go.wait(PATIENCE)
        return "held"

    def told(word: str) -> str:
        return f"{word} and told"

    def passed_on(self: Any) -> Any:
        return self.replace(chain(first.s(), last.s()))

    first, last = task(app, hold), task(app, told)
    made = task(app, passed_on, bind=True)
    async with app.outlast.worker():
        sent = await asyncio.to_thread(made.delay)
        result = app.AsyncResult(sent.id)
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        assert await asyncio.to_thread(lambda: (result.state, result.ready())) == ("PENDING", False)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(result.get, timeout=0.3)
        go.set()
        assert await got(result) == "held and told"
        assert await asyncio.to_thread(lambda: (result.state, result.name, result.result)) == (
            "SUCCESS", "shop.told", "held and told",
        )  # fmt: skip


async def test_what_stands_in_is_revoked_and_fails_for_the_one(app: Any) -> None:
    def add(x: int, y: int) -> int:
        return x + y

    def later(self: Any) -> Any:
        return self.replace(adding.s(1, 2).set(countdown=3600))

    def failing(self: Any) -> Any:
        return self.replace(chain(adding.s(1, "two"), adding.s(3)))

    adding = task(app, add)
    total = app.task(name="shop.total")(lambda numbers: sum(numbers))
    made, bad = task(app, later, bind=True), task(app, failing, bind=True)
    async with app.outlast.worker():
        result = await asyncio.to_thread(made.delay)
        await until(lambda: result.name == "shop.add")
        await asyncio.to_thread(app.control.revoke, result.id)
        with pytest.raises(TaskRevokedError):
            await got(result)
        flow = chord([adding.s(1, 1), chain(bad.s(), adding.s(1))], total.s())
        body = await asyncio.to_thread(flow.delay)
        with pytest.raises(TypeError, match="unsupported operand"):
            await got(body)
        with pytest.raises(ChordError, match="unsupported operand"):
            await got(app.AsyncResult(body.id))


async def test_no_task_says_by_itself_that_others_stand_in(app: Any) -> None:
    value = {"__type__": "outlast.replaced", "__value__": {"end": "another's", "before": []}}
    made = app.task(name="shop.says")(lambda: value)
    async with app.outlast.worker():
        with pytest.raises(JobFailed, match="marked as"):
            await got(await asyncio.to_thread(made.delay))


async def test_polling_a_chain_ends_when_a_step_has_failed(app: Any) -> None:
    def fail() -> None:
        raise ValueError("no")

    first, last = task(app, fail), app.task(name="shop.last")(lambda x: x)
    async with app.outlast.worker():
        result = await asyncio.to_thread(chain(first.s(), last.s()).delay)
        await until(lambda: result.ready())
        assert await asyncio.to_thread(lambda: (result.state, result.failed())) == (
            "FAILURE", True,
        )  # fmt: skip


async def test_errbacks_are_called_when_the_time_was_up_or_what_follows_is_wrong(app: Any) -> None:
    told: list[str] = []

    def endless() -> None:
        while not current().cancelled:
            pass

    def fine() -> int:
        return 1

    errback = app.task(name="shop.errback")(lambda id: told.append(id))
    slow, good = task(app, endless, time_limit=0.05), task(app, fine)
    wrong = good.s().set(exchange="e")
    async with app.outlast.worker():
        one = await asyncio.to_thread(lambda: slow.apply_async(link_error=errback.s()))
        with pytest.raises(TimeoutError):
            await got(one)
        other = await asyncio.to_thread(
            lambda: good.apply_async(link=wrong, link_error=errback.s())
        )
        with pytest.raises(JobFailed, match="exchange"):
            await got(other)
        # And an errback that can't be started doesn't take the place of the error.
        third = await asyncio.to_thread(lambda: good.apply_async(link=wrong, link_error=wrong))
        with pytest.raises(JobFailed, match="exchange"):
            await got(third)
        await until(lambda: len(told) == 2)
    assert sorted(told) == sorted([one.id, other.id]), "they are jobs, and may run side by side"


@pytest.mark.needs("redis")
async def test_canvas_on_a_server() -> None:
    """The store is a Redis: what follows is stored with the end there as well."""
    server = shared(RedisServer)
    server.empty()
    url = f"{server.url()}/0?durability=process"
    app: Any = Celery("shop", broker=url, set_as_current=False)
    add = app.task(name="shop.add")(lambda x, y: x + y)
    total = app.task(name="shop.total")(lambda numbers: sum(numbers))
    async with app.outlast.worker():
        flow = chain(add.s(1, 1), group(add.s(n) for n in range(20)), total.s(), add.s(1000))
        assert await got(await asyncio.to_thread(flow.delay)) == 20 * 2 + sum(range(20)) + 1000
        bodies = await app.outlast.store.find(task="shop.total", limit=10)
        assert len(bodies) == 1


def test_names_can_be_made_otherwise() -> None:
    class Shorter(Celery):
        def gen_task_name(self, name: str, module: str) -> str:
            return f"{module.rpartition('.')[2]}:{name}"

    app = Shorter("shop", broker="memory://", set_as_current=False)
    assert app.task(got).name == "test_compat_runs:got"


def test_without_a_queue(app: Any) -> None:
    app.conf.task_always_eager = True
    total = app.task(name="a")(lambda numbers: sum(numbers))
    assert total.delay([1, 2]).get() == 3
    assert total([1, 2]) == 3
    assert chain(total.s([1, 2]), app.task(name="b")(lambda x: x + 1).s()).delay().get() == 4
