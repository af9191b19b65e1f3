"""The processes of the simulated world: their clocks, and the life signs that outlive them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.proof.sim.loop import OWNER, Owner, SimLoop

import outlast.worker.tend as tend
import outlast.worker.worker as worker_module
from outlast.job import Death

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Morgue", "Process", "SimClock"]

WALL = 1_900_000_000.0


class SimClock:
    """One machine's clock. ``offset`` is what people set; ``rate`` how fast it runs."""

    def __init__(self, loop: SimLoop, offset: float = 0.0, rate: float = 1.0) -> None:
        self._loop = loop
        self.offset = offset
        self.rate = rate

    def now(self) -> float:
        return WALL + self.offset + self._loop.time() * self.rate

    def monotonic(self) -> float:
        return self._loop.time() * self.rate

    async def sleep(self, seconds: float) -> None:
        await self._loop.sleep(seconds / self.rate)


class Process(Owner):
    """One life of a producer or a worker: a restart is another one."""

    def __init__(
        self, pid: int, name: str, clock: SimClock, host: Path | None, gone: Future[None]
    ) -> None:
        super().__init__(pid)
        self.name = name
        self.clock = clock
        self.host = host
        self.worker_id = ""
        self.gone = gone
        """Done when it has ended, one way or another."""
        self.cut_off = ""
        """How the way to the store is blocked: "refused", "silent" (nothing arrives), "deaf"
        (nothing comes back), or open."""
        self.running: dict[tuple[str, int], float] = {}
        """What really runs here: job id and attempt, and since when."""
        self.harms: list[float] = []
        """When some fault touched it."""
        self.unanswered = 0
        """Calls that a fault has touched and that it still waits for."""

    def leave(self, _: object = None) -> None:
        """It has ended: tell whoever waits for that."""
        if not self.gone.done():
            self.gone.set_result(None)

    def harmed_since(self, moment: float) -> bool:
        return self.unanswered > 0 or (bool(self.harms) and self.harms[-1] >= moment)


class SimLifeline:
    """What :class:`outlast.lifeline.Lifeline` is, without files: marks that outlive a process."""

    def __init__(self, morgue: Morgue, folder: Path, worker: str) -> None:
        self.worker = worker
        self.free = False
        self.blameless = False
        self.message = ""
        self.states: dict[str, str] = {}
        self._lines = morgue.lines.setdefault(folder, {})
        owner = OWNER.get()
        assert isinstance(owner, Process)
        self.process = owner

    def hold(self) -> None:
        assert self.worker not in self._lines, "a worker id is used once"
        self._lines[self.worker] = self

    def mark_started(self, id: str, alone: bool) -> None:
        self.states[id] = "alone" if alone else "beside"

    def mark_ended(self, id: str) -> None:
        if id in self.states:
            self.states[id] = "returned"

    def mark_settled(self, id: str) -> None:
        self.states.pop(id, None)

    def blame(self, ids: frozenset[str], message: str) -> None:
        self.states = {
            id: state if state == "returned" or id in ids else "returned"
            for id, state in self.states.items()
        }
        self.blameless = not ids
        self.message = message

    def release(self) -> None:
        self._lines.pop(self.worker, None)

    def abandon(self) -> None:
        self.free = True

    @property
    def death(self) -> Death | None:
        """What its marks tell, if nobody holds them any more."""
        if not (self.free or self.process.dead):
            return None
        running = {id for id, state in self.states.items() if state != "returned"}
        return Death(
            started=frozenset(self.states),
            blamed=frozenset() if self.blameless else frozenset(running),
            alone=len(running) == 1,
            signal=9 if self.process.dead else None,
            message=self.message,
        )


class Morgue:
    """The lifelines of all hosts, and what the engine sees of them instead of files."""

    def __init__(self) -> None:
        self.lines: dict[Path, dict[str, SimLifeline]] = {}

    def make(self, folder: Path, worker: str, slots: int) -> SimLifeline:
        return SimLifeline(self, folder, worker)

    def dead(self, folder: Path) -> list[tuple[str, Death]]:
        lines = self.lines.get(folder, {})
        found = ((worker, line.death) for worker, line in sorted(lines.items()))
        return [(worker, death) for worker, death in found if death is not None]

    def forget(self, folder: Path, worker: str) -> None:
        self.lines.get(folder, {}).pop(worker, None)

    def death_of(self, worker: str) -> Death | None:
        """What is known of a worker on whatever host; None if it lives or nothing is left."""
        for lines in self.lines.values():
            if worker in lines:
                return lines[worker].death
        return None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While the world runs, the engine finds this in the place of files and their locks."""
        places: list[tuple[Any, str, Any]] = [
            (worker_module, "Lifeline", self.make),
            (tend, "dead", self.dead),
            (tend, "forget", self.forget),
        ]
        before = [getattr(module, name) for module, name, _ in places]
        for module, name, ours in places:
            setattr(module, name, ours)
        try:
            yield
        finally:
            for (module, name, _), old in zip(places, before, strict=True):
                setattr(module, name, old)
