"""Looks into the store behind the broker, as `outlast` itself does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.contrib.kombu.rig import Rig

    from outlast.job import Depth, Job, Status

__all__ = ["look", "outlast"]


def look(rig: Rig, queue: str = "celery", *status: Status) -> tuple[Depth, Sequence[Job]]:
    """How many jobs a queue has, and those in these states."""

    async def ask() -> tuple[Depth, Sequence[Job]]:
        store: Any = connect(rig.url, namespace="celery", create=False)
        await store.open()
        try:
            found = await store.find(queue=queue, status=status) if status else ()
            return await store.depth(queue), found
        finally:
            await store.close()

    return asyncio.run(ask())


def outlast(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line, on Celery's namespace."""
    return subprocess.run(
        [sys.executable, "-m", "outlast", *words, "--url", rig.url, "--namespace", "celery"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
