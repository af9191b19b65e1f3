"""`outlast doctor --restart-cmd`: whether a server has what it accepted once it was restarted.

It works in a namespace of its own, which is emptied afterwards; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from outlast.access import ledger_of
from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.doctor.torture_work import makes_nothing
from outlast.errors import ConfigurationError, StoreUnavailable, Unsupported
from outlast.job import Job, Status, done
from outlast.store import Feature
from outlast.stores import connect, redact
from outlast.stores.urls import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.store import Store

__all__ = ["Survival", "restart"]

QUEUE, TASK = "default", "work"
JOBS = 500
LEASE = 60.0
BACK = 120.0
"""Seconds in which the server must answer again."""
QUIET = 10.0
"""Seconds without another job after which no more of them will come."""


class Survival(Struct, frozen=True, kw_only=True):
    """What was counted."""

    code: int
    """The exit code of the command."""
    accepted: int
    found: int
    seconds: float
    """From the end of the command to the first job that could be claimed."""

    @property
    def exit_code(self) -> int:
        """0 all are there, 1 some are lost, 2 can't tell: the command failed."""
        if self.code:
            return 2
        return int(self.found < self.accepted)

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def lines(self) -> Sequence[str]:
        return (
            f"restart: {self.found} of {self.accepted} accepted jobs are there again,"
            f" {self.accepted - self.found} are lost",
            f"  the first could be claimed {self.seconds:.2f} s after the command had ended",
            *([f"  the command failed with {self.code}: this shows nothing"] * bool(self.code)),
        )


def restart(url: str, command: str) -> Survival:
    """Have jobs accepted, run the command, look for the jobs, and tidy up. Blocks.

    Raises ``Unsupported`` where there is no server, ``ConfigurationError`` for a command that can't
    be run, and ``StoreUnavailable`` if the server is not back in time.
    """
    address = parse(url)
    if address.scheme in ("sqlite", "memory"):
        raise Unsupported(f"{redact(url)} has no server that could be restarted")
    namespace = f"outlast-verify-{SystemChance().uuid7()[-12:]}"
    try:
        ids = asyncio.run(_add(url, namespace))
        code = _run(command)
        found, seconds = asyncio.run(_take(url, namespace, len(ids)))
    finally:
        if address.scheme == "rabbitmq":
            from outlast.doctor.rabbitmq import remove

            remove(address, namespace)
    return Survival(code=code, accepted=len(ids), found=len(ids & found), seconds=seconds)


def _run(command: str) -> int:
    try:
        return subprocess.run(shlex.split(command), check=False).returncode
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--restart-cmd {command!r}: {error}") from error


async def _add(url: str, namespace: str) -> set[str]:
    chance = SystemChance()
    jobs = [Job(id=chance.uuid7(), queue=QUEUE, task=TASK, keep=0.0) for _ in range(JOBS)]
    store = await _opened(url, namespace)
    try:
        return {added.id for added in await store.add(jobs)}
    finally:
        await store.close()


async def _take(url: str, namespace: str, many: int) -> tuple[set[str], float]:
    """What can be claimed, and after how long the first."""
    clock = SystemClock()
    began = clock.monotonic()
    store = await _opened(url, namespace)
    found: set[str] = set()
    first, end = 0.0, clock.monotonic() + QUIET
    try:
        while len(found) < many and clock.monotonic() < end:
            try:
                claims = await store.claim([QUEUE], [TASK], JOBS, LEASE, "doctor")
                if not claims:
                    await store.wait([QUEUE], 1.0)
                    continue
                await store.settle([done(claim) for claim in claims])
            except StoreUnavailable:
                await clock.sleep(0.2)
                continue
            first = first or clock.monotonic() - began
            end = clock.monotonic() + QUIET
            found |= {claim.job.id for claim in claims}
        if found and Feature.INSPECT in store.features:
            await ledger_of(store).purge(QUEUE, list(Status))
    finally:
        await store.close()
    return found, first


async def _opened(url: str, namespace: str) -> Store:
    """The store, once its server answers."""
    clock = SystemClock()
    end = clock.monotonic() + BACK
    while True:
        store = connect(url, namespace=namespace, create=makes_nothing(url))
        try:
            await store.open()
        except StoreUnavailable:
            if clock.monotonic() > end:
                raise
            await clock.sleep(0.5)
        else:
            return store
