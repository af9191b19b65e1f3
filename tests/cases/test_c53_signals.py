"""C53: installing asyncio's signal handlers raises on Windows, and the worker dies at start-up."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from tests.cases.rig import ROOT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest
    from tests.cases.rig import Rig

    from outlast import Outlast

PATCH = """
import asyncio

def refuse(self, *args):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = refuse
"""


def test_c53_command_line(rig: Rig) -> None:
    (rig.folder / "sitecustomize.py").write_text(PATCH)
    paths = os.pathsep.join([str(rig.folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    worker = rig.start("-c", "2", PYTHONPATH=paths)
    ids = rig.enqueue(*[("instant", n) for n in range(10)])
    rig.until_ended(ids)
    (last,) = rig.enqueue(("nap", 2.0))
    rig.until_started(last)
    assert rig.stop(worker) == 0
    assert rig.ends([*ids, last]) == [1] * 11


def test_c53_in_a_program(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)

    async def work(app: Outlast) -> None:
        async with app.worker():
            handles = [await app.tasks["instant"].enqueue(n) for n in range(10)]
            for handle in handles:
                await handle.result(timeout=60)
            last = await app.tasks["nap"].enqueue(0.5)
            await _until(lambda: _has_begun(rig, last.id))
        assert str(await last.status()) == "done"

    rig.run(work)
    assert len(rig.said("end")) == 11


async def _has_begun(rig: Rig, id: str) -> bool:
    return bool(await asyncio.to_thread(rig.said, "start", id))


async def _until(happened: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await happened():
            await asyncio.sleep(0)
