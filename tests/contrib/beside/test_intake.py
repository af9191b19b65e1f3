"""What comes in is stored before it is acknowledged, whatever goes wrong; and every end is told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from outlast import Hooks, Outlast, Status
from outlast.access import ledger_of
from outlast.contrib.celery.beside import intake as intake_module
from outlast.contrib.celery.beside import road as road_module
from outlast.contrib.celery.beside.carrier import Taken
from outlast.contrib.celery.beside.intake import Intake
from outlast.contrib.celery.beside.road import Road
from outlast.contrib.celery.beside.wire import Call, Parcel
from outlast.errors import EnqueueUncertain, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE = 60.0


class Broker:
    """One that acknowledges as RabbitMQ does: with a message all that were handed out before it."""

    def __init__(self) -> None:
        self.waiting: list[Taken] = []
        self.settled: list[str] = []
        self.back: list[str] = []
        self.sent: list[Call] = []

    def put(self, *ids: str) -> None:
        for id_ in ids:
            parcel = Parcel(body=b"[[1, 2], {}, {}]", headers={"task": "there.add", "id": id_})
            self.waiting.append(Taken(tag=id_, raw=b"", queue="celery", parcel=parcel))

    def priority(self, given: int | None) -> int:
        return given or 0

    async def take(self, queues: Any, limit: int, left: float | None = None) -> Sequence[Taken]:
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    async def settle(self, taken: Sequence[Taken]) -> None:
        self.settled += [one.tag for one in taken]

    async def give_back(self, taken: Sequence[Taken]) -> None:
        self.back += [one.tag for one in taken]

    async def send(self, calls: Sequence[Call]) -> Sequence[BaseException | None]:
        self.sent += calls
        return [None] * len(calls)

    async def overhear(self, told: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def close(self) -> None: ...


class Backend:
    """One where a state that comes late takes the place of an end."""

    keeps_ends = False

    def __init__(self) -> None:
        self.told: list[str] = []
        self.gate = asyncio.Event()

    async def store(self, results: Any, sizes: Any) -> None:
        self.told += [one.document["status"] for one in results]

    async def note(self, results: Any) -> None:
        await self.gate.wait()
        await self.store(results, ())

    async def part(self, part: Any) -> None: ...

    async def finish(self, group: str) -> None: ...

    async def close(self) -> None: ...


class Rig:
    """An app beside these two."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.backend = Broker(), Backend()
        monkeypatch.setattr(road_module, "open_broker", lambda *_: self.broker)
        monkeypatch.setattr(road_module, "open_backend", lambda *_: self.backend)
        self.app = Outlast(f"memory://{name}")

        async def add(x: int, y: int) -> int:
            return x + y

        def plainly(x: int, y: int) -> int:
            return x + y

        tasks = {"there.add": self.app.task(add), "there.plainly": self.app.task(plainly)}
        self.app.celery_tasks(tasks, broker="fake://", backend="fake://", track_started=True)
        (self.road,) = (one for one in self.app.hooks if isinstance(one, Road))
        self.intake = Intake(self.road, self.broker)

    async def jobs(self) -> dict[str, Status]:
        return {job.id: job.status for job in await ledger_of(self.app.store).find(limit=100)}

    def adding(self, monkeypatch: pytest.MonkeyPatch, add: Callable[..., Any]) -> None:
        """Have the store add in this way; ``add`` is given its own."""
        store = self.app.store
        own = store.add
        monkeypatch.setattr(store, "add", lambda jobs: add(own, jobs))


@pytest.fixture
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rig:
    name = "".join(one if one.isalnum() else "-" for one in request.node.name)
    return Rig(name[:60], monkeypatch)


@pytest.mark.parametrize("stored", [True, False])
async def test_what_nobody_knows_to_be_stored_is_stored_before_more_is_taken(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Else the ack of the next ones would be one of these, too."""
    tries = 0

    async def add(own: Any, jobs: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            if stored:
                await own(jobs)
            raise EnqueueUncertain("nobody knows", ids=tuple(job.id for job in jobs))
        if tries == 2:
            raise StoreUnavailable("away")
        return await own(jobs)

    async with rig.app:
        rig.adding(monkeypatch, add)
        rig.broker.put("a", "b", "c")
        assert await rig.intake.turn() == 3
        assert await rig.jobs() == dict.fromkeys("abc", Status.QUEUED)
    assert rig.broker.settled == ["a", "b", "c"]
    assert rig.broker.back == []


async def test_one_that_has_the_id_of_another_is_stored_under_one_of_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was not known whether it is stored: the other has another payload."""
    tries = 0

    async def add(own: Any, jobs: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise EnqueueUncertain("nobody knows", ids=tuple(job.id for job in jobs))
        return await own(jobs)

    async with rig.app:
        await rig.app.store.add(
            [rig.road.jobs.of_call(Call(id="a", task="there.add", args=[5, 5]))]
        )
        rig.adding(monkeypatch, add)
        rig.broker.put("a")
        assert await rig.intake.turn() == 1
        found = await rig.jobs()
    assert len(found) == 2
    assert rig.broker.settled == ["a"]


async def test_what_was_taken_is_acknowledged_before_the_worker_has_ended(rig: Rig) -> None:
    """Else it would come again, as from one that died, after an hour."""
    gate, begun = asyncio.Event(), asyncio.Event()
    settle, settled = rig.broker.settle, []

    async def slowly(taken: Sequence[Taken]) -> None:
        begun.set()
        await gate.wait()
        await settle(taken)

    class Watch(Hooks):
        async def worker_ending(self, worker: str) -> None:
            gate.set()

        def worker_stopped(self, worker: str) -> None:
            settled.extend(rig.broker.settled)

    rig.broker.settle = slowly  # type: ignore[method-assign]
    rig.app.hooks.insert(0, Watch())
    async with rig.app.worker(), asyncio.timeout(PATIENCE):
        rig.broker.put("a")
        await begun.wait()
    assert settled == ["a"]


@pytest.mark.parametrize("error", [ValueError("a defect"), StoreUnavailable("away")])
async def test_what_could_not_be_stored_goes_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def add(own: Any, jobs: Any) -> Any:
        raise error

    async with rig.app:
        rig.adding(monkeypatch, add)
        rig.broker.put("a", "b")
        with pytest.raises(type(error)):
            await rig.intake.turn()
    assert rig.broker.settled == []
    assert rig.broker.back == ["a", "b"]


async def test_a_message_that_nobody_thought_of_keeps_no_other_from_coming_in(rig: Rig) -> None:
    async with rig.app:
        rig.broker.put("a")
        deep = b"[[1, " + b"[" * 600 + b"]" * 600 + b"], {}, {}]"
        odd = Parcel(body=deep, headers={"task": "there.add", "id": "odd"})
        rig.broker.waiting.append(Taken(tag="odd", raw=deep, queue="celery", parcel=odd))
        rig.broker.put("b")
        assert await rig.intake.turn() == 3
        found = await ledger_of(rig.app.store).find(limit=10)
    assert {job.id: job.task for job in found} == {
        "a": "celery:there.add", "b": "celery:there.add", "odd": "celery-refused",
    }  # fmt: skip


async def test_an_old_job_whose_end_nobody_told_is_found_behind_many_new_ones(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "PAGE", 2)
    monkeypatch.setattr(intake_module, "PAGES", 1)
    monkeypatch.setattr(intake_module, "WHOLE", 0.0)
    monkeypatch.setattr(intake_module, "SHARE", 0)
    async with rig.app:
        store = rig.app.store
        ids = [f"id-{n}" for n in range(8)]
        for id_ in ids:
            await store.add([rig.road.jobs.of_call(Call(id=id_, task="there.add", args=[1, 1]))])
        await ledger_of(store).cancel(ids[1:])
        await rig.intake._sweep()
        await ledger_of(store).cancel(ids[:1])
        await rig.intake._sweep()
        told = {id_ for id_ in await rig.jobs() if id_.endswith(".end")}
    assert told == {f"{id_}.end" for id_ in ids}


async def test_one_that_ended_as_another_was_deleted_is_told_of(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many as before."""
    monkeypatch.setattr(intake_module, "WHOLE", 0.0)
    monkeypatch.setattr(intake_module, "SHARE", 0)
    async with rig.app:
        store, ledger = rig.app.store, ledger_of(rig.app.store)
        for id_ in "ab":
            await store.add([rig.road.jobs.of_call(Call(id=id_, task="there.add", args=[1, 1]))])
        await ledger.cancel(["a"])
        await rig.intake._sweep()
        await ledger.purge("default", [Status.CANCELLED])
        await ledger.cancel(["b"])
        await rig.intake._sweep()
        assert "b.end" in await rig.jobs()


async def test_a_next_step_that_is_wrong_is_not_the_fault_of_the_one_before(rig: Rig) -> None:
    """It goes to Celery's queue, and is refused where it comes in."""
    rig.backend.gate.set()
    step = {"task": "there.add", "args": ["no number"], "options": {"task_id": "b"}}
    call = Call(id="a", task="there.add", args=[1, 2], chain=[step])
    async with rig.app.worker():
        await rig.app.store.add([rig.road.jobs.of_call(call)])
        async with asyncio.timeout(PATIENCE):
            while not rig.broker.sent:
                await asyncio.sleep(0)
    assert [(one.id, one.args) for one in rig.broker.sent] == [("b", [3, "no number"])]
    assert "SUCCESS" in rig.backend.told
    assert "FAILURE" not in rig.backend.told


@pytest.mark.parametrize("task", ["there.add", "there.plainly"])
async def test_started_is_told_before_the_end_is_stored(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Another process tells the end, and what comes after it would be taken for the last word."""
    monkeypatch.setattr(road_module, "LATE", PATIENCE)
    call = Call(id="a", task=task, args=[1, 2])
    async with rig.app.worker():
        await rig.app.store.add([rig.road.jobs.of_call(call)])
        async with asyncio.timeout(PATIENCE):
            while not rig.road._out._noting:
                await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
        assert (await rig.jobs())["a"] is Status.RUNNING
        rig.backend.gate.set()
        async with asyncio.timeout(PATIENCE):
            while len(rig.backend.told) < 2:
                await asyncio.sleep(0)
    assert rig.backend.told == ["STARTED", "SUCCESS"]


async def test_a_backend_that_is_away_holds_up_no_run_for_long(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road_module, "LATE", 0.01)
    async with rig.app.worker():
        await rig.app.store.add(
            [rig.road.jobs.of_call(Call(id="a", task="there.add", args=[1, 2]))]
        )
        async with asyncio.timeout(PATIENCE):
            while not rig.backend.told:
                await asyncio.sleep(0)
        rig.backend.gate.set()
    assert rig.backend.told[0] == "SUCCESS"


async def test_one_that_died_and_was_revived_is_told_of_again(rig: Rig) -> None:
    """Its result, and what follows it, were kept back: an end of it had been told."""
    fails = True

    @rig.app.task
    async def flaky() -> str:
        if fails:
            raise ValueError("no")
        return "yes"

    rig.app.celery_tasks({"flaky": flaky}, broker="fake://")
    rig.backend.gate.set()
    async with rig.app.worker():
        await rig.app.store.add([rig.road.jobs.of_call(Call(id="a", task="flaky"))])
        async with asyncio.timeout(PATIENCE):
            while "FAILURE" not in rig.backend.told:
                await asyncio.sleep(0)
            fails = False
            assert await ledger_of(rig.app.store).revive(["a"]) == [True]
            while "SUCCESS" not in rig.backend.told:
                await asyncio.sleep(0)
    assert rig.backend.told[-1] == "SUCCESS"
