"""The fleet: real producers and workers on one store, killed one after the other at random moments.

Workers come in both kinds: `outlast worker` with its supervisor and children, and workers inside a
program. ``python -m tests.proof.fleet --rounds 300``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.proof import journal as journals
from tests.proof import tolls
from tests.proof.actors import dumped_in_child
from tests.proof.checker import check
from tests.proof.journal import Journal
from tests.proof.kill import Toll, in_fresh_process, run_rounds
from tests.proof.patience import linger, until
from tests.proof.processes import Child, die_with_parent, fork
from tests.proof.stores import sqlite_store

if TYPE_CHECKING:
    from outlast.job import Job
    from outlast.task import Call

__all__ = ["Fleet", "fleet_rounds", "is_dry", "take_fleet_toll", "work"]

ROOT = Path(__file__).parents[2]
SESSION = 100
"""Rounds on one store before it is left to run dry and judged."""
QUIET = 60.0
"""Seconds that all that was accepted may take to end, once nobody is killed any more."""
PR_SET_CHILD_SUBREAPER = 36
BACKLOG = 150
LEASE = 3600
"""None runs out in a session: what the dead held has to come back by their lifelines."""


class Fleet:
    """Who is alive, and how the next of each kind is started."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.db = folder / "proof.db"
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.dice = dice
        self.rig = Journal(self.witness)
        self.producers: list[Child] = []
        self.workers: list[Child] = []
        self.supervisors: list[subprocess.Popen[bytes]] = []
        self.orphans: set[int] = set()
        self.log = (folder / "log").open("wb")
        self.env = {
            **os.environ,
            "OUTLAST_URL": f"sqlite:///{self.db}",
            "PROOF_WITNESS": str(self.witness),
        }
        os.environ.update(self.env)

    def muster(self) -> None:
        """Bring every kind up to strength."""
        while len(self.producers) < 2:
            number = self.dice.getrandbits(32)
            self.producers.append(fork(lambda n=number: _produce(n)))  # type: ignore[misc]
        while len(self.workers) < 2:
            self.workers.append(fork(lambda: work(LEASE)))
        while len(self.supervisors) < 1:
            words = [sys.executable, "-m", "outlast", "worker", "tests.proof.tolls:app"]
            words += ["-q", "tolls", "-c", "4", "-p", "2", "--create", "--log-level", "error"]
            words += ["--lease", str(LEASE)]
            self.supervisors.append(
                subprocess.Popen(
                    words, cwd=ROOT, env=self.env, stderr=self.log, preexec_fn=die_with_parent
                )
            )

    def strike(self) -> bool:
        """Kill one of them; False if the one that was drawn had no child to kill yet."""
        kind = self.dice.choices(("producer", "worker", "child", "supervisor"), (3, 4, 3, 1))[0]
        if kind == "producer":
            self._kill(self.producers)
        elif kind == "worker":
            self._kill(self.workers)
        elif kind == "supervisor":
            boss = self.supervisors.pop(0)
            self.orphans.update(children_of(boss.pid))
            self.rig.write("kill", target=boss.pid)
            boss.kill()
            boss.wait()
        else:
            found = children_of(self.supervisors[0].pid)
            if not found:
                return False
            victim = self.dice.choice(found)
            self.rig.write("kill", target=victim)
            # It is reaped by its supervisor only after it died: the number is still its own.
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        return True

    def _kill(self, group: list[Child]) -> None:
        victim = group.pop(self.dice.randrange(len(group)))
        self.rig.write("kill", target=victim.pid)
        if not victim.alive:
            raise RuntimeError(f"process {victim.pid} ended by itself: {victim.status}")
        victim.kill()

    def stop_producers(self) -> None:
        for child in self.producers:
            self.rig.write("kill", target=child.pid)
            child.kill()
        self.producers.clear()
        self.rig.write("calm")

    def dismiss(self) -> None:
        """End the workers in order: each must exit by itself, with 0."""
        until(self._all_there, 60, "everyone who is to be stopped in order has started")
        for boss in self.supervisors:
            self.rig.write("term", target=boss.pid)
            boss.send_signal(signal.SIGTERM)
            if boss.wait(60) != 0:
                raise RuntimeError(f"the supervisor ended with {boss.returncode}")
        self.supervisors.clear()
        for child in self.workers:
            self.rig.write("term", target=child.pid)
            child.send(signal.SIGTERM)
            if (code := child.wait(60)) != 0:
                raise RuntimeError(f"a worker ended with {code}")
        self.workers.clear()

    def _all_there(self) -> bool:
        births = [event for event in journals.read(self.witness) if event.kind == "birth"]
        born = {event.pid for event in births} | {event.target for event in births}
        wanted = {boss.pid for boss in self.supervisors} | {child.pid for child in self.workers}
        return wanted <= born

    def disband(self) -> None:
        """Whatever happened: nobody is left."""
        for boss in self.supervisors:
            self.orphans.update(children_of(boss.pid))
            boss.kill()
            boss.wait()
        for child in self.producers + self.workers:
            self.orphans.update(children_of(child.pid))
            child.kill()
        self.orphans.update(children_of(os.getpid()))
        for pid in self.orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                # Ours by adoption: it stays in the table until we have waited for it.
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        self.rig.close()
        self.log.close()


def children_of(pid: int) -> list[int]:
    """The living children of a process of ours."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []
    return [int(word) for word in text.split()]


def _produce(seed: int) -> None:
    asyncio.run(_enqueue(random.Random(seed), tolls.say_hello()))


async def _enqueue(dice: random.Random, journal: Journal) -> None:
    """Calls of every task, one by one and in batches, and told before and after."""
    async with tolls.app as app:
        while True:
            if (await app.store.depth(tolls.QUEUE)).ready > BACKLOG:
                await app.store.wait([tolls.QUEUE], 0.02, space=True)
                continue
            calls = [_call(dice) for _ in range(dice.choice((1, 1, 1, 2, 8)))]
            for call in calls:
                journal.write("invoke", call.job.id, lane=call.job.lane or "")
            handles = await app.enqueue_many(calls)
            for call, handle in zip(calls, handles, strict=True):
                mine = handle.id == call.job.id
                kind: journals.Kind = "ok" if mine else "fail"
                journal.write(kind, call.job.id, lane=call.job.lane or "")


def _call(dice: random.Random) -> Call[list[int]]:
    kind = dice.choices(
        ("quick", "slow", "threaded", "heavy", "unsure", "in_lane"), (60, 14, 8, 1, 8, 9)
    )[0]
    seconds = round(dice.uniform(0.01, 0.3), 3)
    if kind == "quick":
        return tolls.quick.call("x" * dice.randint(0, 300))
    if kind == "unsure":
        return tolls.unsure.call(dice.randint(1, 4))
    if kind == "in_lane":
        return tolls.in_lane.call(f"l{dice.randint(0, 4)}", seconds / 10)
    task = {"slow": tolls.slow, "threaded": tolls.threaded, "heavy": tolls.heavy}[kind]
    return task.call(seconds)


def work(lease: float = 15.0) -> None:
    """A worker inside a program, until SIGTERM; it says hello when it can be told to stop."""

    async def serve() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        tolls.say_hello()
        async with tolls.app.worker(queues=[tolls.QUEUE], concurrency=4, lease=lease):
            await stop.wait()

    asyncio.run(serve())


def fleet_rounds(rounds: int, seed: int, budget: float = float("inf")) -> Toll:
    """So many kills, or as many as ``budget`` seconds allow, in sessions that are judged."""
    _adopt_orphans()
    toll = Toll(seed=seed)
    began = time.monotonic()
    dice = random.Random(seed)
    while toll.rounds < rounds and time.monotonic() - began < budget:
        with tempfile.TemporaryDirectory(prefix="outlast-fleet-") as scratch:
            wanted = min(SESSION, rounds - toll.rounds)
            toll.rounds += _session(Path(scratch), wanted, dice, toll, began + budget)
    toll.seconds = time.monotonic() - began
    return toll


def _session(folder: Path, rounds: int, dice: random.Random, toll: Toll, deadline: float) -> int:
    fleet = Fleet(folder, dice)
    done = 0
    try:
        fleet.muster()
        until(lambda: _anything(fleet.witness, b'"kind":"end"'), 60.0, "the first job ends")
        while done < rounds and time.monotonic() < deadline:
            done += fleet.strike()
            fleet.muster()
            linger(dice.uniform(0.0, 0.3))
        fleet.stop_producers()
        with contextlib.suppress(TimeoutError):  # the judge says who is stuck
            until(lambda: is_dry(fleet.db), QUIET, "all has ended", beat=0.1)
        fleet.dismiss()
        final = dumped_in_child(lambda: sqlite_store(fleet.db), folder / "final.json")
        events = journals.read(fleet.witness)
        toll.add(check(events, final, author=_author), events)
    finally:
        fleet.disband()
    return done


def _author(job: Job) -> tuple[int, int] | None:
    return tolls.author(job.result)


def _anything(witness: Path, mark: bytes) -> bool:
    return any(mark in path.read_bytes() for path in witness.glob("*.jsonl"))


def is_dry(db: Path) -> bool:
    """Whether nothing is queued or running. Read by a connection of a moment, in this process:
    it is closed again before the next fork."""
    import apsw

    connection = apsw.Connection(str(db), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(5000)
        live = connection.execute("SELECT count(*) FROM jobs WHERE state < 4").get
    finally:
        connection.close()
    return not live


def _adopt_orphans() -> None:
    """Children of a killed supervisor become ours, so that none of them can be forgotten."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def take_fleet_toll(rounds: int, seed: int, budget: float = 3600.0) -> Toll:
    """Run the rounds in a fresh process."""
    return in_fresh_process("fleet", rounds, seed, budget)


if __name__ == "__main__":
    run_rounds(__doc__, 300, fleet_rounds)
