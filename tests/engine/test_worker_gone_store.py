"""A store whose files are taken away under a running worker: it ends, and its successor looks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.rig import Gate, Rig, Spy
from tests.engine.service import Service, wait_until

from outlast import StoreStopped, StoreUnavailable
from outlast.store import Feature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.clock import Clock

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.kill_all()


@pytest.mark.parametrize("call", ["claim", "settle", "prune"])
async def test_a_store_that_was_given_up_ends_the_worker_after_two_leases(
    rig: Rig, call: str
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise StoreStopped("the file was deleted")

    gate = Gate(rig)
    gate.open.set()
    rig.before[call] = stopped
    worker = rig.make(open_store=rig.spied, lease=15)
    running = asyncio.ensure_future(worker.run())
    await gate.task.enqueue(1)
    await rig.pass_time(25)
    assert not running.done(), "it may be put back"
    await rig.pass_time(15)
    assert running.done()
    with pytest.raises(StoreStopped, match="the file was deleted"):
        await running


async def test_a_store_that_comes_and_goes_is_waited_for(rig: Rig) -> None:
    gate = Gate(rig)
    gate.open.set()

    def stopped(*_: object, **__: object) -> None:
        raise StoreStopped("the file was deleted")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("no route")

    async with rig.worker(open_store=rig.spied, lease=15):
        for error in (stopped, stopped, away, away):
            for call in ("claim", "prune", "renew"):
                rig.before[call] = error
            await rig.pass_time(20)
            if error is stopped:
                rig.before.clear()
                await rig.pass_time(20)
        rig.before.clear()
        handle = await gate.task.enqueue(1)
        await rig.pass_time(5)
        assert await handle.result(60) == 1


class Patient(Spy):
    """A store whose claims wait until there is something to claim."""

    clock: Clock

    @property
    def features(self) -> Feature:
        return self._store.features | Feature.PROMPT | Feature.PUSH

    async def claim_next(self, *args: Any) -> Any:
        *wanted, timeout, enough = args
        found = await self.claim(*wanted)
        if not found:
            timer = asyncio.ensure_future(self.clock.sleep(timeout))
            await asyncio.wait((timer, enough), return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            found = await self.claim(*wanted)
        return found


@pytest.mark.parametrize("kind", [Spy, Patient])
async def test_outages_close_together_are_not_one_long_outage(rig: Rig, kind: type[Spy]) -> None:
    """Each was shorter than two leases, though all of them together were longer."""
    gate = Gate(rig)

    def open_store() -> Any:
        spy = kind(rig.app.open_store(), rig.before)
        if isinstance(spy, Patient):
            spy.clock = rig.clock
        return spy

    def stopped(*_: object, **__: object) -> None:
        raise StoreStopped("the file was deleted")

    async with rig.worker(open_store=open_store, lease=15, concurrency=5):
        running = [await gate.task.enqueue(n) for n in range(4)]
        await rig.pass_time(5)
        for n in range(3):
            for call in ("claim", "settle", "renew", "recover", "prune", "beat"):
                rig.before[call] = stopped
            gate.doors[n].set()  # so that verdicts wait as well
            await rig.pass_time(20)
            rig.before.clear()
            await rig.pass_time(1)
        gate.open.set()
        await rig.pass_time(5)
        assert [await each.result(60) for each in running] == [0, 1, 2, 3]
    assert sorted(gate.ran) == [0, 1, 2, 3]


def health(service: Service) -> tuple[int, str]:
    found = subprocess.run(
        [sys.executable, "-m", "outlast", "health", "--url", f"sqlite:///{service.db}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return found.returncode, found.stdout


async def test_a_deleted_log_ends_the_worker_and_costs_nothing(service: Service) -> None:
    supervisor = service.start(lease=1.0)
    async with service.opened() as app:
        first = await app.tasks["wait"].enqueue("go")
        wait_until(lambda: service.lines("start", first.id), 60)
        (child,) = service.children(supervisor)
        Path(f"{service.db}-wal").unlink()
        wait_until(lambda: child not in service.children(supervisor), 60)
        assert f"the worker ends: StoreStopped: {service.db}-wal was deleted" in service.stderr
        # What we hold open may have stored more: nobody begins a new log beside it.
        refused = f"ERROR {service.db}-wal was deleted. Put it back, or end the programs that use"
        wait_until(lambda: refused in service.stderr, 60)
        code, said = health(service)
        assert code == 1
        assert "-wal was deleted. Put it back" in said
        assert not os.path.exists(f"{service.db}-wal")
    # Closed by the last who had it, all of it is in the file, and the next worker opens that.
    (service.folder / "go").touch()
    wait_until(lambda: service.lines("end", first.id), 60)
    async with service.opened() as app:
        assert await app.handle(first.id).result(60)
        assert await (await app.tasks["quick"].enqueue(3)).result(60) == 3
    assert health(service)[0] == 0
    supervisor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(supervisor.wait, 60) == 0
    assert "Traceback" not in service.stderr


async def test_a_deleted_file_ends_the_worker_and_none_is_made_in_its_place(
    service: Service,
) -> None:
    supervisor = service.start(lease=1.0)
    wait_until(lambda: "outlast worker:" in service.stderr, 60)
    (child,) = service.children(supervisor)
    assert health(service)[0] == 0
    for end in ("", "-wal", "-shm"):
        Path(f"{service.db}{end}").unlink()
    wait_until(lambda: child not in service.children(supervisor), 60)
    assert f"the worker ends: StoreStopped: {service.db} was deleted" in service.stderr
    wait_until(lambda: f"ERROR there is no store at {service.db}" in service.stderr, 60)
    code, said = health(service)
    assert code == 1
    assert f"there is no store at {service.db}" in said
    assert not service.db.exists(), "though it was told --create, when it began"
    async with service.opened() as app:  # on purpose, by a program that may
        assert await (await app.tasks["quick"].enqueue(4)).result(60) == 4
    supervisor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(supervisor.wait, 60) == 0
