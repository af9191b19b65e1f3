"""Worker processes under their supervisor: killed, poisoned, blocked, stopped and replaced."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.service import Service, wait_until

from outlast import JobFailed, Status
from outlast.worker import supervisor
from outlast.worker.options import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outlast import Job, Outlast

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.kill_all()


async def job_of(app: Outlast, id: str) -> Job:
    return await app.handle(id).job()


async def test_it_drains_and_ends_in_order(service: Service) -> None:
    async with service.opened() as app:
        supervisor = service.start(processes=2)
        handles = [await app.tasks["quick"].enqueue(n) for n in range(50)]
        assert [await handle.result(60) for handle in handles] == list(range(50))
        first = await app.tasks["wait"].enqueue("go")
        wait_until(lambda: service.lines("start", first.id))
        supervisor.send_signal(signal.SIGTERM)
        wait_until(lambda: len(service.lines("stopping")) == 2)
        second = await app.tasks["wait"].enqueue("go")
        (service.folder / "go").touch()
        assert await asyncio.to_thread(supervisor.wait, 60) == 0
        assert await first.result(60) == service.lines("start", first.id)[0][2]
        assert await second.status() is Status.QUEUED
    assert "Traceback" not in service.stderr
    assert [*service.folder.rglob("*.life")] == []


@pytest.mark.alone
async def test_an_idle_one_ends_at_once(service: Service) -> None:
    supervisor = service.start()
    wait_until(lambda: "outlast worker:" in service.stderr)
    began = time.monotonic()
    supervisor.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(supervisor.wait, 60) == 0
    assert time.monotonic() - began < 10.0


@pytest.mark.alone
async def test_a_killed_process_is_replaced_and_its_jobs_start_again_at_once(
    service: Service,
) -> None:
    async with service.opened() as app:
        supervisor = service.start()
        handles = [await app.tasks["wait"].enqueue("go") for _ in range(3)]
        wait_until(lambda: len(service.lines("start")) == 3)
        (child,) = service.children(supervisor)
        os.kill(child, signal.SIGKILL)
        killed = time.monotonic()
        # They are suspects now and run one by one, so the first start is what tells.
        wait_until(lambda: len(service.lines("start")) == 4)
        assert time.monotonic() - killed < 5.0
        (service.folder / "go").touch()
        pids = {await handle.result(60) for handle in handles}
        assert pids == set(service.children(supervisor))
        jobs = [await handle.job() for handle in handles]
        assert [(job.attempt, job.crashes, job.failures) for job in jobs] == [(2, 0, 0)] * 3
    assert f"worker process {child} ended (signal 9)" in service.stderr


@pytest.mark.alone
async def test_a_neighbour_takes_over_at_once(service: Service) -> None:
    async with service.opened() as app:
        dying = service.start()
        handle = await app.tasks["wait"].enqueue("go")
        wait_until(lambda: service.lines("start"))
        service.start()
        wait_until(lambda: service.stderr.count("outlast worker:") == 2)
        (child,) = service.children(dying)
        dying.kill()  # nobody is left to say how the worker died
        os.kill(child, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: len(service.lines("start", handle.id)) == 2)
        assert time.monotonic() - killed < 5.0
        said = "died (nobody knows how): 1 of its jobs are taken over"
        wait_until(lambda: said in service.stderr)
        (service.folder / "go").touch()
        await handle.result(60)


async def test_poison_is_buried_and_takes_none_of_a_hundred_neighbours_with_it(
    service: Service,
) -> None:
    async with service.opened() as app:
        neighbours = [await app.tasks["quick"].enqueue(n) for n in range(50)]
        poison = await app.tasks["poison"].enqueue()
        neighbours += [await app.tasks["quick"].enqueue(n) for n in range(50, 100)]
        service.start(concurrency=200)
        with pytest.raises(JobFailed) as caught:
            await poison.result(60)
        assert [await handle.result(60) for handle in neighbours] == list(range(100))
        job = await poison.job()
        others = [await handle.job() for handle in neighbours]
    failure = caught.value.failure
    assert failure is not None
    assert (failure.kind, failure.exit_code) == ("crash", 137)
    assert job.crashes == 3
    assert {other.crashes for other in others} == {0}
    starts = len(service.lines("start", poison.id))
    assert 3 <= starts <= 4, "once beside others, three times alone"


async def test_poison_that_always_runs_alone_starts_exactly_three_times(service: Service) -> None:
    async with service.opened() as app:
        poison = await app.tasks["segfault"].enqueue()
        others = [await app.tasks["quick"].enqueue(n) for n in range(50)]
        service.start(concurrency=1)
        with pytest.raises(JobFailed) as caught:
            await poison.result(60)
        assert [await handle.result(60) for handle in others] == list(range(50))
    assert caught.value.failure is not None
    assert caught.value.failure.signal == signal.SIGSEGV
    assert len(service.lines("start", poison.id)) == 3
    assert len(service.lines("start")) == 53


async def test_a_worker_whose_other_loop_was_broken_does_not_go_on_without_it(
    service: Service,
) -> None:
    """Nobody would renew its leases, nor find out who died."""
    async with service.opened() as app:
        service.start()
        unplugs = await app.tasks["unplugs"].enqueue()
        wait_until(lambda: service.lines("start", unplugs.id))
        wait_until(lambda: "ended (exit code 89)" in service.stderr)
        assert await (await app.tasks["quick"].enqueue(1)).result(60) == 1
    assert "a task broke the event loop: a descriptor of the worker was closed" in service.stderr


async def test_a_crash_loop_is_slowed_down(service: Service) -> None:
    async with service.opened() as app:
        for _ in range(3):
            await app.tasks["poison"].enqueue()
        service.start(concurrency=1)
        wait_until(lambda: service.stderr.count("ended (exit code 137)") == 6, 100)
    pauses = [
        line.split()[-2] for line in service.stderr.splitlines() if "ended (exit code 137)" in line
    ]
    assert pauses == ["0.0", "0.1", "0.2", "0.4", "0.8", "1.6"]


async def test_a_blocked_loop_ends_its_process_and_that_job_alone_is_blamed(
    service: Service,
) -> None:
    async with service.opened() as app:
        neighbour = await app.tasks["wait"].enqueue("go")
        service.start(grace=0.5)
        wait_until(lambda: service.lines("start", neighbour.id))
        blocks = await app.tasks["blocks"].using(timeout=0.2).enqueue()
        wait_until(lambda: service.has_started(neighbour.id, 2))
        (service.folder / "go").touch()
        await neighbour.result(60)
        with pytest.raises(JobFailed) as caught:
            await blocks.result(60)
        job = await neighbour.job()
    assert (job.crashes, job.suspect) == (0, False)
    failure = caught.value.failure
    assert failure is not None
    assert (failure.kind, failure.exit_code) == ("crash", 86)
    assert "blocked the event loop" in failure.message


async def test_a_signal_is_heard_whichever_thread_the_system_gives_it_to(service: Service) -> None:
    """After Ctrl-Z and ``kill %1`` all threads wake together, and any of them may take it."""
    code = """
import signal, threading
from outlast.worker.options import WorkerOptions
from outlast.worker.supervisor import supervise

ready, later = threading.Event(), threading.Event()

def take() -> None:
    ready.wait()
    later.wait(0.5)  # until the main thread waits for nothing in particular
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=take, daemon=True).start()
options = WorkerOptions(target="program:app", create=True)
raise SystemExit(supervise(options, lambda message: ready.set()))
"""
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=service.folder, stdin=subprocess.DEVNULL)
    service.supervisors.append(process)
    assert await asyncio.to_thread(process.wait, 60) == 0


async def test_unfinished_work_goes_back_at_no_cost(service: Service) -> None:
    async with service.opened() as app:
        handle = await app.tasks["wait"].enqueue("go")
        for attempt in (1, 2):
            supervisor = service.start(grace=0.2)
            wait_until(partial(service.has_started, handle.id, attempt))
            supervisor.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(supervisor.wait, 60) == 0
            job = await handle.job()
            assert (job.status, job.attempt, job.failures, job.crashes) == (
                Status.QUEUED, attempt, 0, 0,
            )  # fmt: skip


async def test_a_second_signal_hurries(service: Service) -> None:
    async with service.opened() as app:
        handle = await app.tasks["wait"].enqueue("go")
        supervisor = service.start(grace=600)
        wait_until(lambda: service.lines("start", handle.id))
        supervisor.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in service.stderr)
        assert supervisor.poll() is None
        supervisor.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(supervisor.wait, 60) == 0
        assert await handle.status() is Status.QUEUED


async def test_a_thread_that_would_not_end_is_nobodys_crash(service: Service) -> None:
    async with service.opened() as app:
        handle = await app.tasks["deaf"].enqueue()
        supervisor = service.start(grace=0.1)
        wait_until(lambda: service.lines("start", handle.id))
        supervisor.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(supervisor.wait, 60) == 0
        service.start()
        wait_until(lambda: len(service.lines("start", handle.id)) == 2)
        job = await handle.job()
        assert (job.attempt, job.crashes, job.suspect) == (2, 0, False)


async def test_when_the_supervisor_is_killed_the_workers_drain_and_end(service: Service) -> None:
    async with service.opened() as app:
        supervisor = service.start()
        handle = await app.tasks["wait"].enqueue("go")
        wait_until(lambda: service.lines("start", handle.id))
        (child,) = service.children(supervisor)
        supervisor.kill()
        supervisor.wait()
        (service.folder / "go").touch()
        assert await handle.result(60) == child
        wait_until(lambda: not os.path.exists(f"/proc/{child}"))
        assert (await handle.job()).attempt == 1


async def test_sighup_replaces_the_processes_gracefully(service: Service) -> None:
    async with service.opened() as app:
        supervisor = service.start()
        handle = await app.tasks["wait"].enqueue("go")
        wait_until(lambda: service.lines("start", handle.id))
        (child,) = service.children(supervisor)
        supervisor.send_signal(signal.SIGHUP)
        wait_until(lambda: len(service.children(supervisor)) == 2)
        assert await (await app.tasks["quick"].enqueue(7)).result(60) == 7
        assert service.lines("end")[0][2] != child
        (service.folder / "go").touch()
        assert await handle.result(60) == child
        wait_until(lambda: child not in service.children(supervisor))
        assert (await handle.job()).attempt == 1


async def test_a_signal_during_the_start_is_obeyed(service: Service) -> None:
    supervisor = service.start()
    wait_until(lambda: service.children(supervisor))
    supervisor.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(supervisor.wait, 60) == 0
    assert "Traceback" not in service.stderr


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ({"target": "nowhere:app"}, 2, "No module named 'nowhere'"),
        ({"target": "program:nothing"}, 2, "no attribute 'nothing'"),
        ({"create": False}, 4, "jobs.db"),
        ({"queues": ("no spaces",)}, 2, "no spaces"),
        ({"loop": "nowhere"}, 2, "is not installed"),
    ],
    ids=str,
)
async def test_what_can_never_start_ends_with_the_reason(
    service: Service, options: dict[str, object], code: int, says: str
) -> None:
    supervisor = service.start(**options)
    assert await asyncio.to_thread(supervisor.wait, 60) == code
    assert says in service.stderr
    assert "Traceback" not in service.stderr
    assert "stopping" not in service.stderr, "nothing had begun"


async def test_the_banner_says_how_many_jobs_there_are(service: Service) -> None:
    """Whoever named the wrong store sees it at once."""
    async with service.opened() as app:
        nobodys = app.tasks["quick"].using(delay=3600, queue="later")
        await app.enqueue_many([nobodys.call(n) for n in range(1200)])
        service.start(queues=("default", "later"))
        wait_until(lambda: "tasks:" in service.stderr)
        assert "queues: default (0 jobs), later (1,200 jobs)\n" in service.stderr


CHECKS = """
from outlast import DurabilityError

async def refuses(store):
    raise DurabilityError(f"{store.url} is not good enough")

async def warns(store):
    return ["SQ9: little room"]
"""


async def test_a_store_that_is_not_good_enough_is_not_worked_on(service: Service) -> None:
    (service.folder / "checks.py").write_text(CHECKS)
    async with service.opened() as app:
        handle = await app.tasks["quick"].enqueue(1)
        supervisor = service.start(check="checks:refuses", processes=2)
        assert await asyncio.to_thread(supervisor.wait, 60) == 4
        assert "is not good enough" in service.stderr
        assert await handle.status() is Status.QUEUED
    assert "Traceback" not in service.stderr


async def test_what_weakens_the_store_is_said_once(service: Service) -> None:
    (service.folder / "checks.py").write_text(CHECKS)
    async with service.opened() as app:
        service.start(check="checks:warns", processes=2)
        handles = [await app.tasks["wait"].enqueue("go") for _ in range(30)]
        wait_until(lambda: len({pid for _, _, pid in service.lines("start")}) == 2)
        (service.folder / "go").touch()
        for handle in handles:
            await handle.result(60)
    assert service.stderr.count("SQ9: little room") == 1


async def test_an_event_loop_without_signal_handlers_will_do(service: Service) -> None:
    (service.folder / "poorloop.py").write_text(
        "import asyncio\n"
        "class Loop(asyncio.SelectorEventLoop):\n"
        "    def add_signal_handler(self, *args):\n"
        "        raise NotImplementedError\n"
        "new_event_loop = Loop\n"
    )
    async with service.opened() as app:
        supervisor = service.start(loop="poorloop")
        assert await (await app.tasks["quick"].enqueue(1)).result(60) == 1
        (child,) = service.children(supervisor)
        handle = await app.tasks["wait"].enqueue("go")
        wait_until(lambda: service.lines("start", handle.id))
        os.kill(child, signal.SIGINT)
        (service.folder / "go").touch()
        assert await handle.result(60) == child
        wait_until(lambda: f"worker process {child} ended (exit code 0)" in service.stderr)
        supervisor.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(supervisor.wait, 60) == 0


async def test_changed_files_are_loaded_anew(service: Service) -> None:
    async with service.opened() as app:
        supervisor = service.start(reload=True)
        quick = app.tasks["quick"]
        assert await (await quick.enqueue(1)).result(60) == 1
        source = (service.folder / "program.py").read_text()
        (service.folder / "program.py").write_text(source + "\nsyntax error here\n")
        wait_until(lambda: "SyntaxError" in service.stderr)
        changed = source.replace("return n", "return n + 100")
        (service.folder / "program.py").write_text(changed)
        assert await (await quick.enqueue(2)).result(60) == 102
        supervisor.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(supervisor.wait, 60) == 0


@pytest.mark.parametrize(
    ("program", "found"),
    [("", [True, True]), ("gc.disable(); gc.set_threshold(0)", [True, False])],
    ids=["as it comes", "the program's own way"],
)
def test_a_worker_process_spares_the_garbage_collector(program: str, found: list[bool]) -> None:
    code = (
        f"import gc; {program}\n"
        "from outlast.worker.child import spare_the_collector\n"
        "spare_the_collector()\n"
        "print([gc.get_freeze_count() > 1000, gc.get_threshold()[0] >= 5000])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(found)


def test_a_worker_process_ends_in_order_and_takes_nothing_apart() -> None:
    """Threads are waited for, then farewells are said, and what was printed is written."""
    code = """
import atexit, sys, threading
from concurrent.futures import ThreadPoolExecutor
from outlast.worker.child import leave

class Thing:
    def __del__(self):
        print("taken apart")

thing, pool, end = Thing(), ThreadPoolExecutor(1), threading.Event()
pool.submit(print, "a thread of a pool that was never shut down")
atexit.register(print, "farewell")
threading.Thread(target=lambda: (end.wait(), print("a thread that is waited for"))).start()
threading.Timer(0.05, end.set).start()
print("half a line", end="; ")
leave(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONUNBUFFERED": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "")
    for said in ("of a pool", "that is waited for", "half a line; "):
        assert said in done.stdout
    assert done.stdout.endswith("farewell\n"), "and the thing was left as it was"


def test_a_supervisor_does_not_tidy_up_what_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    def supervise(options: WorkerOptions, announce: object) -> int:
        frozen.append(gc.get_freeze_count())
        return 3

    options = WorkerOptions("module:app", queues=("default",))
    monkeypatch.setenv(supervisor.OPTIONS, json.dumps(options._asdict()))
    monkeypatch.setattr(supervisor, "supervise", supervise)
    try:
        assert supervisor._main() == 3
        assert gc.get_freeze_count() > frozen[0], "not before, since it may work for years"
    finally:
        gc.unfreeze()


def test_what_a_process_said_last_is_heard_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Why it can't start, above all: else it is started once more, and says it again."""
    ended = threading.Event()
    listen, end = supervisor._Supervisor._listen, supervisor._Supervisor._await_end

    def late(self: Any, child: Any, messages: int) -> None:
        assert ended.wait(60)
        listen(self, child, messages)

    def soon(self: Any, child: Any, listening: threading.Thread) -> None:
        child.process.wait()
        ended.set()
        end(self, child, listening)

    monkeypatch.setattr(supervisor._Supervisor, "_listen", late)
    monkeypatch.setattr(supervisor._Supervisor, "_await_end", soon)
    monkeypatch.setattr(supervisor, "LAST_WORDS", 60.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    assert supervisor.supervise(WorkerOptions("broken:app")) == 4
    assert caplog.text.count("ZeroDivisionError") == 1
    assert "next one starts" not in caplog.text


def test_an_end_is_heard_of_though_somebody_holds_the_other_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that a task has left behind has the pipe by which its parent told things."""
    monkeypatch.setattr(supervisor, "LAST_WORDS", 0.01)
    held = threading.Event()
    listening = threading.Thread(target=held.wait, args=(60,))
    listening.start()
    mine = supervisor._Supervisor(WorkerOptions("module:app"), lambda _: None)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        child = supervisor.Child(process, 0)
        mine._await_end(child, listening)
    assert listening.is_alive()
    assert mine._events.get_nowait() == supervisor.Event("ended", child, 7)
    held.set()
    listening.join()
