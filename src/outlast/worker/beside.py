"""A worker that runs beside a block of the user's program, and ends with it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outlast.worker.worker import Worker

__all__ = ["running"]

log = logging.getLogger(__name__)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Run a worker beside the block; if it fails, cancel the block and raise what it raised."""
    block = asyncio.current_task()
    assert block is not None
    failed = False

    def ended(runner: asyncio.Task[None]) -> None:
        nonlocal failed
        if not runner.cancelled() and runner.exception() is not None:
            failed = True
            log.critical("the worker in this program has failed", exc_info=runner.exception())
            block.cancel()

    runner = asyncio.create_task(worker.run(), name="outlast-worker")
    runner.add_done_callback(ended)
    try:
        yield
    except asyncio.CancelledError:
        # Our own cancel has done its work; somebody else's goes on.
        if not failed or block.uncancel() > 0:
            raise
    finally:
        runner.remove_done_callback(ended)
        worker.stop()
        await _end(runner)


async def _end(runner: asyncio.Task[None]) -> None:
    """Wait for the worker, whatever happens, and raise what it raised."""
    try:
        await asyncio.wait((runner,))
    except asyncio.CancelledError:
        runner.cancel()
        await asyncio.wait((runner,))
        raise
    if not runner.cancelled():
        runner.result()
