"""What every part of the suite shares: the `needs` marker, which skips loudly or fails."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")

# How long an example takes, or to be thought of, says nothing on a machine that others use too.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def _missing_tools(*tools: str) -> str | None:
    missing = [tool for tool in tools if shutil.which(tool, path=_path()) is None]
    return f"not found: {', '.join(missing)}" if missing else None


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _servers() -> str | None:
    places = [shutil.which("postgres"), *Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return None if any(places) else "PostgreSQL is not installed (Debian: postgresql)"


def _redis() -> str | None:
    from tests.servers import REDIS_SERVER  # brings a driver with it

    return _missing_tools(REDIS_SERVER)


def _pgbouncer() -> str | None:
    return _missing_tools("pgbouncer")


def _rabbitmq() -> str | None:
    found = any(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return None if found else "RabbitMQ is not installed (Debian: rabbitmq-server)"


def _cut() -> str | None:
    """A power cut needs a file system of our own to cut: root, and the tools to make one."""
    if os.geteuid() != 0:
        return "only root can mount a file system"
    missing = _missing_tools("mke2fs", "losetup", "mount", "strace", "unshare")
    if missing is not None:
        return missing
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "mount namespaces are not allowed here"


def _netns() -> str | None:
    missing = _missing_tools("ip", "unshare")
    if missing is not None:
        return missing
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return None if probe.returncode == 0 else "network namespaces are not allowed here"


def _py313() -> str | None:
    if os.environ.get("OUTLAST_PY313"):
        return None
    return "OUTLAST_PY313 names no Python 3.13 with its test package (scripts/test looks for one)"


_PROBES = {
    "servers": _servers, "redis": _redis, "rabbitmq": _rabbitmq, "cut": _cut, "netns": _netns,
    "pgbouncer": _pgbouncer, "py313": _py313,
}  # fmt: skip
_SERVERS = ("redis", "rabbitmq", "pgbouncer")


def pytest_configure() -> None:
    """Started in the background of a shell, it ignores SIGINT, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take long comes first in the share of each process, the many quick ones last.

    pytest-xdist gives each an equal number in a row, and lets those who are done take from the
    ends of the others' rows: a long one there would be waited for by all in the end.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if processes > 1:
        items[:] = in_shares(items, [is_long(item) for item in items], processes)


def is_long(item: pytest.Item) -> bool:
    """Of the rigs, whose tests share no servers with their neighbours."""
    limit = item.get_closest_marker("timeout")
    return item.nodeid.startswith("tests/proof/") and limit is not None and limit.args[0] >= 240


def in_shares(items: Sequence[T], long: Sequence[bool], shares: int) -> list[T]:
    """Equal numbers of both kinds for each share, the long ones first; else in their order."""
    first = [item for item, is_so in zip(items, long, strict=True) if is_so]
    rest = [item for item, is_so in zip(items, long, strict=True) if not is_so]
    found: list[T] = []
    for n in range(shares):
        found += first[n::shares]
        found += rest[len(rest) * n // shares : len(rest) * (n + 1) // shares]
    return found


@cache
def missing(what: str) -> str | None:
    """Why this machine can't run tests that need ``what``, or None if it can."""
    return _PROBES[what]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose needs aren't met, or fails it where OUTLAST_REQUIRE names the need.

    A hook and not a fixture, so that it comes before fixtures that need the same thing.
    """
    required = os.environ.get("OUTLAST_REQUIRE", "").split(",")
    for marker in item.iter_markers("needs"):
        for what in marker.args:
            reason = missing(what)
            if reason is None:
                continue
            if what in required or (what in _SERVERS and "servers" in required):
                pytest.fail(f"OUTLAST_REQUIRE names {what!r}, but: {reason}", pytrace=False)
            pytest.skip(f"needs {what}: {reason}")


@pytest.fixture(autouse=True)
def _environment_is_put_back() -> Iterator[None]:
    """What a rig tells its child processes there, the next test's must not hear."""
    before = dict(os.environ)
    yield
    kept = {name for name in os.environ if name.startswith("PYTEST_")}
    for name in os.environ.keys() - before.keys() - kept:
        del os.environ[name]
    os.environ.update({name: before[name] for name in before.keys() - kept})


@pytest.fixture(scope="session", autouse=True)
def _servers_end() -> Iterator[None]:
    """Stop the servers that tests of this process have started."""
    yield
    servers = sys.modules.get("tests.servers")
    if servers is not None:
        servers.remove_shared()


@pytest.fixture(autouse=True)
def _log_stays_as_it_is() -> Iterator[None]:
    """A level that one test leaves behind hides warnings from whichever test comes next."""
    loggers = (logging.getLogger(), logging.getLogger("outlast"))
    before = [(log.level, log.disabled) for log in loggers]
    yield
    assert [(log.level, log.disabled) for log in loggers] == before, "put the log's level back"
