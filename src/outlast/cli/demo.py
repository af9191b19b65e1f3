"""`outlast demo`: real work on real files, by workers that are killed all the while."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import sysconfig
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.access import ledger_of
from outlast.chance import SystemChance
from outlast.cli.demo_work import JOURNAL, Witness, app, facts_of, files_in, measure
from outlast.clock import SystemClock
from outlast.errors import ConfigurationError
from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from outlast.cli.screen import Screen
    from outlast.job import Job
    from outlast.store import Ledger

__all__ = ["demo"]

STORE = "outlast-demo.db"
WORKERS, CONCURRENCY = 2, 4
ENOUGH = 10
"""Jobs that must have been interrupted, or the demo has shown nothing."""
CALM = 0.7
"""Seconds between kills while there are interruptions enough for what is done; else at once."""
BATCH = 1000


@click.command(short_help="Work on real files while workers are killed; lose nothing.")
@click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.pass_obj
def demo(screen: Screen, folder: Path | None) -> int:
    """Measure every file below FOLDER in worker processes that are killed all the while.

    One job for each file: its size, SHA-256, lines and words. Two worker processes do them, and are
    killed with SIGKILL again and again. At the end everything is computed once more, directly, and
    compared. FOLDER is your Python's own library if you name none.

    The jobs are in outlast-demo.db in the current folder until the demo is through. Stop it when
    you like (Ctrl-C): started again, it goes on where it was.

    Exit code 0 if nothing was lost and nothing differs, else 1.
    """
    chosen = (folder or Path(sysconfig.get_path("stdlib"))).resolve()
    return asyncio.run(_Demo(screen, chosen).run())


class _Demo:
    def __init__(self, screen: Screen, folder: Path) -> None:
        self.screen = screen
        self.folder = folder
        self.store = Path(STORE).absolute()
        self.journal = self.store.with_suffix(".journal")
        self.log = self.store.with_suffix(".log")
        self.clock = SystemClock()
        self.chance = SystemChance()
        self.kills = 0
        self.files: list[str] = []

    async def run(self) -> int:
        if os.name != "posix":
            raise ConfigurationError("the demo kills with SIGKILL, which this system doesn't have")
        self.files = files_in(self.folder)
        if len(self.files) < ENOUGH:
            raise ConfigurationError(
                f"{self.folder} holds {len(self.files)} files; name a folder with more of them"
            )
        url = f"sqlite:///{self.store}"
        os.environ["OUTLAST_URL"], os.environ[JOURNAL] = url, str(self.journal)
        # The app may have read another URL when it was made: that of a real program.
        with app.stand_in(url):
            async with app:
                ledger = ledger_of(app.store)
                ids = await self._enqueue(ledger)
                witness = Witness(self.journal, ids.values())
                with _display(len(ids)) as show:
                    await self._kill_until_done(ledger, witness, show)
                jobs = await _all(ledger, ids)
        return self._judge(jobs, witness)

    async def _enqueue(self, ledger: Ledger) -> dict[str, str]:
        """One job for each file. A file that has its job from a run before gets no second one."""
        folder = str(self.folder)
        ids: dict[str, str] = {}
        created = 0
        for at in range(0, len(self.files), BATCH):
            paths = self.files[at : at + BATCH]
            handles = await app.enqueue_many(
                [measure.using(key=f"{folder}/{path}"[-500:]).call(folder, path) for path in paths]
            )
            ids.update(zip(paths, (handle.id for handle in handles), strict=True))
            created += sum(handle.created for handle in handles)
        self.screen.line(f"{len(ids)} files below {self.folder}")
        self.screen.line(f"store {self.store}, durability {app.store.durability}")
        if created < len(ids):
            self.screen.line(f"going on: {len(ids) - created} of the jobs are from a run before")
        return ids

    def _start_worker(self) -> subprocess.Popen[bytes]:
        """A supervisor and its worker process, in a process group of their own."""
        command = (sys.executable, "-m", "outlast", "worker", "outlast.cli.demo_work:app")
        options = ("-c", str(CONCURRENCY), "--log-level", "error")
        with self.log.open("ab") as log:
            return subprocess.Popen(
                (*command, *options), stdout=log, stderr=log, start_new_session=True
            )

    async def _kill_until_done(
        self, ledger: Ledger, witness: Witness, show: Callable[[Counter[str]], None]
    ) -> None:
        """Watch, and kill one of the workers again and again, until no job is left."""
        workers = [self._start_worker() for _ in range(WORKERS)]
        try:
            last_kill = self.clock.monotonic()
            total = len(self.files)
            while True:
                witness.look()
                counts = await self._counts(ledger, witness)
                show(counts)
                left = counts["queued"] + counts["running"]
                if not left:
                    return
                behind = witness.interrupted < 2 * ENOUGH * (1.1 - left / total)
                due = behind or self.clock.monotonic() - last_kill > CALM
                if due and await self._kill_one(workers, ledger, witness):
                    last_kill = self.clock.monotonic()
                await self.clock.sleep(0.002 if due else 0.02)
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
                worker.wait()

    async def _kill_one(
        self, workers: list[subprocess.Popen[bytes]], ledger: Ledger, witness: Witness
    ) -> bool:
        """Kill one that is amid a job, supervisor and all, and put another in its place.

        All are stopped before they are looked at: however fast the jobs are and however slow this
        is, the kill interrupts one whose end is not on record, and the others get no further.
        """
        if any(worker.poll() is not None for worker in workers):
            raise ConfigurationError(f"a worker ended by itself; {self.log} holds what it said")
        known = [info.pid for info in await ledger.workers()]
        own = {
            worker: [worker.pid, *(pid for pid in known if _session(pid) == worker.pid)]
            for worker in workers
        }
        victim = None
        for pids in own.values():
            _signal(pids, signal.SIGSTOP)
        try:
            witness.look()
            amid = []
            for worker in workers:
                jobs = await ledger.get(witness.lately(worker.pid))
                if any(job is not None and not job.status.ended for job in jobs):
                    amid.append(worker)
            if amid:
                victim = amid[int(self.chance.random() * len(amid))]
        finally:
            for worker, pids in own.items():
                _signal(pids, signal.SIGKILL if worker is victim else signal.SIGCONT)
        if victim is None:
            return False
        victim.wait()
        self.kills += 1
        workers[workers.index(victim)] = self._start_worker()
        return True

    async def _counts(self, ledger: Ledger, witness: Witness) -> Counter[str]:
        counts: Counter[str] = Counter()
        for line in await ledger.lines():
            depth = line.depth
            counts.update(
                queued=depth.queued, running=depth.running, done=depth.done, dead=depth.dead
            )
        counts["kills"] = self.kills
        counts["interrupted"] = witness.interrupted
        return counts

    def _judge(self, jobs: dict[str, Job | None], witness: Witness) -> int:
        """Compute everything once more, directly, and compare."""
        witness.look()
        dead = [path for path, job in jobs.items() if job is not None and job.status is Status.DEAD]
        lost = [path for path, job in jobs.items() if job is None or not job.status.ended]
        different = [
            path
            for path, job in jobs.items()
            if job is not None
            and job.status is Status.DONE
            and measure.signature.decode_result(job.result or b"") != facts_of(self.folder / path)
        ]
        self.screen.line()
        for name, number in (
            ("files", len(jobs)),
            ("kills", self.kills),
            ("jobs interrupted", witness.interrupted),
            ("jobs run twice", witness.twice),
            ("dead", len(dead)),
            ("lost", len(lost)),
            ("differences", len(different)),
        ):
            self.screen.line(f"{name:18}{number:8}")
        for name, paths in (("dead", dead), ("lost", lost), ("differs", different)):
            for path in paths[:5]:
                self.screen.line(f"{name}: {path}")
        bad = bool(dead or lost or different)
        if not bad and witness.interrupted < ENOUGH:
            self.screen.note(
                f"only {witness.interrupted} jobs were interrupted, too few to show anything; name"
                " a folder with more or larger files"
            )
            bad = True
        if not bad:
            self._tidy_up()
        return int(bad)

    def _tidy_up(self) -> None:
        from outlast.stores.sqlite.files import remove

        remove(str(self.store))
        self.journal.unlink(missing_ok=True)
        self.log.unlink(missing_ok=True)


async def _all(ledger: Ledger, ids: dict[str, str]) -> dict[str, Job | None]:
    paths = list(ids)
    jobs: dict[str, Job | None] = {}
    for at in range(0, len(paths), BATCH):
        some = paths[at : at + BATCH]
        jobs.update(zip(some, await ledger.get([ids[path] for path in some]), strict=True))
    return jobs


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _session(pid: int) -> int:
    """The session a process belongs to; 0 if it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@contextmanager
def _display(total: int) -> Iterator[Callable[[Counter[str]], None]]:
    """Live on a terminal, and a line now and then elsewhere."""
    if sys.stdout.isatty():
        with _live(total) as show:
            yield show
        return
    shown = -1

    def plain(counts: Counter[str]) -> None:
        nonlocal shown
        step = counts["done"] * 10 // total
        if step != shown:
            shown = step
            click.echo(_words(counts))

    yield plain


@contextmanager
def _live(total: int) -> Iterator[Callable[[Counter[str]], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: Sequence[Any] = (
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task("", total=total, words="")

        def show(counts: Counter[str]) -> None:
            progress.update(bar, completed=counts["done"], words=_words(counts))

        yield show


def _words(counts: Counter[str]) -> str:
    names = ("queued", "running", "done", "kills", "interrupted")
    return "  ".join(f"{name} {max(0, counts[name])}" for name in names)
