"""`outlast doctor --restart-cmd`: a server that keeps what it accepted, and one that forgets it."""

from __future__ import annotations

import asyncio
import os
import shlex
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
from tests.proof.patience import until
from tests.servers import RedisServer

from outlast.doctor import restart as restarting
from outlast.doctor.restart import Survival, restart
from outlast.errors import ConfigurationError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")


async def restarted(tmp_path: Path, again: Callable[[], object], ask: Callable[[str], T]) -> T:
    """What ``ask`` answers, whose command waits until the test has restarted the server."""
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    os.mkfifo(answered)
    words = shlex.join(["sh", "-c", f"touch {asked}; cat {answered}"])
    answer = asyncio.create_task(asyncio.to_thread(ask, words))
    await asyncio.to_thread(until, lambda: asked.exists() or answer.done(), 120.0, "it asks")
    if not answer.done():
        await asyncio.to_thread(again)
        await asyncio.to_thread(answered.write_bytes, b"")
    return await answer


@pytest.mark.needs("redis")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("settings", "asked", "found"),
    [({"appendfsync": "always"}, "power", 500), ({"appendonly": "no"}, "memory", 0)],
    ids=["kept", "forgotten"],
)
async def test_a_server_that_is_killed_and_started_again(
    settings: dict[str, str],
    asked: str,
    found: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarting, "QUIET", 2.0)
    server = RedisServer(**settings)
    server.start()
    url = server.url(query=f"durability={asked}")

    def again() -> None:
        server.kill()
        server.start()

    try:
        survival = await restarted(tmp_path, again, partial(restart, url))
        assert (survival.code, survival.accepted, survival.found) == (0, 500, found)
        assert b"depth" not in server.say("KEYS", "*outlast-verify*")
    finally:
        server.remove()


@pytest.mark.parametrize(
    ("code", "found", "exit_code"),
    [(0, 5, 0), (0, 4, 1), (1, 5, 2)],
    ids=["fine", "lost", "failed"],
)
def test_what_a_restart_shows(code: int, found: int, exit_code: int) -> None:
    survival = Survival(code=code, accepted=5, found=found, seconds=0.5)
    assert survival.exit_code == exit_code
    assert ("this shows nothing" in "\n".join(survival.lines())) == (exit_code == 2)


def test_what_can_not_be_restarted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no server"):
        restart(f"sqlite:///{tmp_path}/a.db", "true")
    with pytest.raises(ConfigurationError, match="--restart-cmd 'no-such"):
        restarting._run("no-such-command-anywhere --now")
