"""Runs ``processes=True`` tasks, each job in a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from outlast.errors import StoreError, StoreUnavailable
from outlast.execution import crashed
from outlast.failing import TimedOut
from outlast.job import Failure, Verdict
from outlast.worker.frames import (
    Begun,
    Hello,
    Known,
    Note,
    Order,
    Outcome,
    Recall,
    Remember,
    Stored,
    Trouble,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from outlast.execution import Runnable
    from outlast.job import Claim
    from outlast.running import Current
    from outlast.steps import Keeper
    from outlast.worker.frames import Frame

__all__ = ["WorkerProcesses"]

log = logging.getLogger(__name__)


class _Partner:
    """A process, and the wait for its end, which is noticed whoever else holds its pipes."""

    __slots__ = ("ended", "process")

    def __init__(self, process: Process) -> None:
        self.process = process
        self.ended = asyncio.ensure_future(process.wait())

    def send(self, frame: Frame) -> None:
        assert self.process.stdin is not None
        # It takes one frame at a time, so there is nothing to drain before it answers.
        self.process.stdin.write(pack(frame))

    async def receive(self) -> Frame | None:
        """The next frame, or None when the process is gone."""
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait((reading, self.ended), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()

    async def _read(self) -> Frame | None:
        assert self.process.stdout is not None
        try:
            size = await self.process.stdout.readexactly(4)
            return unpack(await self.process.stdout.readexactly(int.from_bytes(size, "big")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def kill(self) -> None:
        try:
            self.process.kill()
        except ProcessLookupError:
            pass  # it was quicker


class WorkerProcesses:
    """Processes are started when they are needed, and used again for the next job.

    ``home`` names a module that has the tasks, if the module of a function does not. ``keeper``
    keeps the steps of the jobs, if the store can: a process says which, and this one stores them.
    """

    def __init__(self, home: str | None = None, keeper: Keeper | None = None) -> None:
        self._home = home
        self._keeper = keeper
        self._idle: list[_Partner] = []

    async def run(self, claim: Claim, task: Runnable, run: Current) -> Verdict:
        """Run a job; its verdict. Cancelled, or out of time, its process is killed.

        A process that dies counts as a crash of the job alone, since nothing else was in it.
        """
        partner = self._idle.pop() if self._idle else await self._start()
        try:
            outcome = await self._converse(partner, claim, task, run)
        except BaseException:
            partner.kill()
            await asyncio.shield(partner.ended)
            raise
        if outcome is None:
            return crashed(claim, _obituary(await partner.ended))
        self._idle.append(partner)
        return Verdict(
            claim, outcome.kind, outcome.result, outcome.delay, outcome.failure, (), outcome.started
        )

    async def close(self) -> None:
        """End the processes that wait; those that run have been killed by then."""
        for partner in self._idle:
            partner.kill()
        for partner in self._idle:
            await partner.ended
        self._idle.clear()

    async def _start(self) -> _Partner:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "outlast.worker.apart",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        partner = _Partner(process)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        partner.send(Hello(sys.path, main))
        return partner

    async def _converse(
        self, partner: _Partner, claim: Claim, task: Runnable, run: Current
    ) -> Outcome | None:
        """What became of the job; None if its process died."""
        modules = [_importable(task.fn.__module__), *([self._home] if self._home else [])]
        steps = self._keeper is not None
        partner.send(Order(claim.job, claim.fence, modules, task.fn.__qualname__, steps))
        timeout = claim.job.timeout
        limit = asyncio.timeout(None)
        try:
            async with limit:
                while True:
                    frame = await partner.receive()
                    if isinstance(frame, Begun) and timeout is not None:
                        limit.reschedule(asyncio.get_running_loop().time() + timeout)
                    elif isinstance(frame, Note):
                        run.pass_on(frame.progress)
                    elif isinstance(frame, Recall | Remember):
                        partner.send(await self._keep(claim, frame))
                    elif frame is None or isinstance(frame, Outcome):
                        return frame
        except TimeoutError:
            if limit.expired() and run.why is None:
                raise TimedOut(timeout) from None
            raise

    async def _keep(self, claim: Claim, asked: Recall | Remember) -> Frame:
        """Do with the steps of a job what its process asks for; the answer."""
        assert self._keeper is not None
        store = self._keeper.store
        try:
            if isinstance(asked, Recall):
                return Known(list(await store.recall(claim)))
            return Stored(await store.remember(claim, asked.step))
        except StoreError as error:
            return Trouble(isinstance(error, StoreUnavailable), str(error))


def _importable(module: str) -> str:
    """A module that runs by ``python -m`` can be imported under the name it has there."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return module if spec is None else str(spec.name)


def _obituary(code: int) -> Failure:
    signal, exit_code = (-code, None) if code < 0 else (None, code)
    how = f"by signal {signal}" if signal else f"with exit code {exit_code}"
    message = f"the process of this job died {how}"
    return Failure(kind="crash", message=message, signal=signal, exit_code=exit_code)
