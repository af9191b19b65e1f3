"""CPython's own tests of asyncio's queues, run on ours: an installed interpreter's, no copies."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.proof.processes import import_path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "py313"
NEEDED = """apsw msgspec click rich markdown-it-py mdurl pytest pytest-asyncio pytest-timeout
hypothesis sortedcontainers iniconfig packaging pluggy pygments typing-extensions attrs""".split()
"""What outlast needs, and what its own drop-in tests need."""

TICKS = "counts rounds of the event loop in which a put must be done; ours waits for its commit"
DURABLE = "expects join() to return one round after task_done(); ours returns when that is durable"
OWN = ["limits", "order", "join", "shutdown", "cancel", "model", "owner"]
DIFFERENT = {
    "QueueBasicTests.test_maxsize": TICKS,
    "QueuePutTests.test_put_cancelled_race": TICKS,
    "QueuePutTests.test_why_are_putters_waiting": TICKS,
    **{
        f"{kind}ShutdownTests.{test}": DURABLE
        for kind in ("Queue", "LifoQueue", "PriorityQueue")
        for test in ("test_shutdown_nonempty", "test_shutdown_immediate_with_unfinished")
    },
}
"""What commit="group" may do differently. An entry that passes is an error."""


def run(python: str | Path, commit: str, folder: Path) -> dict[str, str]:
    """What became of each test in that interpreter."""
    found = subprocess.run(
        [python, "-W", "error::ResourceWarning", Path(__file__).with_name("cpython_suite.py"),
         commit, folder],
        env={**os.environ, "PYTHONPATH": import_path(ROOT / "src")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "never retrieved" not in found.stderr, found.stderr
    assert "Traceback" not in found.stderr, found.stderr
    results: dict[str, str] = json.loads(found.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="session")
def running() -> str:
    """This interpreter, if it has brought its tests along."""
    try:
        found = importlib.util.find_spec("test.test_asyncio.test_queues")
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(
            f"{sys.executable} came without its `test` package: CPython's tests did not run"
        )
    return sys.executable


@pytest.fixture(scope="session")
def python313() -> Path:
    """A Python 3.13 with what outlast needs, kept between runs."""
    base = os.environ["OUTLAST_PY313"]
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = f"{base}\n{pins()}"
    python, stamp = CACHE / "venv" / "bin" / "python", CACHE / "made-for"
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (python.exists() and stamp.exists() and stamp.read_text() == wanted):
            stamp.unlink(missing_ok=True)
            (CACHE / "requirements.txt").write_text(pins())
            call([base, "-m", "venv", "--clear", CACHE / "venv"])
            call([python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                  "--require-hashes", "-r", CACHE / "requirements.txt"])  # fmt: skip
            stamp.write_text(wanted)
    return python


def pins() -> str:
    """The exact versions and hashes of the few packages that the queues need."""
    blocks = re.split(r"^(?=\S)", (ROOT / "requirements" / "ci.txt").read_text(), flags=re.M)
    return "".join(block for block in blocks if block.split("==")[0] in NEEDED)


def call(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check(found: dict[str, str], different: dict[str, str]) -> None:
    """Everything passes but what is listed; what is listed does not."""
    failed = {test: why for test, why in found.items() if why != "passed"}
    assert {test: why for test, why in failed.items() if test not in different} == {}
    passing = [test for test in different if found.get(test, "not there") == "passed"]
    assert passing == [], "listed as different, and yet they pass"


def test_the_list_is_short() -> None:
    assert len(DIFFERENT) <= 9


@pytest.mark.timeout(360)
def test_each_passes_all_of_this_interpreters_tests(running: str, tmp_path: Path) -> None:
    found = run(running, "each", tmp_path)
    assert len(found) >= 44
    check(found, {})


@pytest.mark.timeout(360)
def test_group_passes_all_but_the_listed_ones(running: str, tmp_path: Path) -> None:
    found = run(running, "group", tmp_path)
    assert len(found) >= 44
    check(found, {test: why for test, why in DIFFERENT.items() if test in found})


@pytest.mark.needs("py313")
@pytest.mark.timeout(600)
def test_each_passes_all_59_of_python_313(python313: Path, tmp_path: Path) -> None:
    found = run(python313, "each", tmp_path)
    assert len(found) >= 59
    check(found, {})


@pytest.mark.needs("py313")
@pytest.mark.timeout(600)
def test_group_passes_all_but_nine_of_python_313(python313: Path, tmp_path: Path) -> None:
    found = run(python313, "group", tmp_path)
    assert len(found) >= 59
    check(found, DIFFERENT)


@pytest.mark.needs("py313")
@pytest.mark.timeout(600)
def test_our_own_tests_agree_with_the_asyncio_of_python_313(python313: Path) -> None:
    """There, `shutdown` and all else is compared with asyncio's own."""
    files = [f"tests/dropin/test_{name}.py" for name in OWN]
    done = subprocess.run(
        [python313, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not file", *files],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": import_path(ROOT / "src")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has no shutdown" not in done.stdout


@pytest.mark.needs("py313")
@pytest.mark.timeout(600)
def test_the_runner_runs_them_on_asyncio_as_well(python313: Path, tmp_path: Path) -> None:
    """Where nothing is replaced nothing may fail: else it is the runner that fails."""
    check(run(python313, "asyncio", tmp_path), {})
