"""Runs kombu's and Celery's own tests on our transport, out of their source distributions.

``python -m tests.contrib.kombu.theirs`` runs all of them, some minutes, and says what it found.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.proof.processes import import_path
from tests.servers import RedisServer

__all__ = ["DIFFERENT", "SELECTION", "Missing", "run_celery", "run_kombu", "unpacked"]

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "sdists"

ONE = "asks one drain_events for several messages; kombu's own Redis tests drain once for each"
LOGS = "reads log records of the test process, which the worker's own logging setup takes away"
DIFFERENT = {
    "test_Priority.test_publish_consume": ONE,
    "test_Priority.test_publish_requeue_consume": ONE,
    "test_trace_log_arguments.test_task_success": LOGS,
    "test_trace_log_arguments.test_task_failed": LOGS,
    "test_tasks.test_revoked_by_headers_complex_canvas": (
        "has 20 s for 22 rounds, and each waits out a second of inspect; fails on Redis, too"
    ),
    "test_chain.test_chord_header_id_duplicated_on_rabbitmq_msg_duplication[redis-group-ids]": (
        "hands over a Signal as a message property, which AMQP alone leaves out; xfail on Redis"
    ),
    "test_chord.test_error_propagates_from_chord": (
        "waits for a group whose forerunner failed, and nothing tells it; xfail on Redis"
    ),
    "test_chord.test_disabling_flag_allow_error_cb_on_chord_header": (
        "fails without us as well, with Celery's own Redis transport and result backend"
    ),
}
"""What may fail, and why. An entry that passes is an error."""

SELECTION = {
    "test_tasks.py": """test_tasks::test_reject_with_requeue_redelivers_and_succeeds
        test_tasks::test_expired""",
    "test_canvas.py": """test_chain::test_complex_chain
        test_group::test_nested_group_chord_counting_mixed""",
}
"""Of Celery's tests, what every run has the time for: each waits seconds for all to be idle."""


class Missing(Exception):
    """The source distribution can't be had here."""


def unpacked(name: str) -> Path:
    """The source distribution of the pinned version, checked by its hash, kept between runs."""
    pins = (ROOT / "requirements" / "ci.txt").read_text()
    found = re.search(rf"^{name}==(\S+) \\\n(?:    --hash=\S+(?: \\)?\n)+", pins, re.M)
    assert found is not None, f"{name} is not pinned"
    folder = CACHE / f"{name}-{found[1]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(name, found[0], folder)
    return folder


def _fetch(name: str, pin: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as place:
        (Path(place) / "pin.txt").write_text(pin)
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check",
             "--no-deps", "--no-binary", name, "--require-hashes", "-r", "pin.txt"],
            cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"{name} can't be downloaded: {done.stderr[-500:]}")
        (archive,) = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(place, filter="data")
        (Path(place) / folder.name).rename(folder)


def run_kombu(folder: Path) -> dict[str, str]:
    """What became of each of kombu's tests."""
    suite = Path(__file__).with_name("kombu_suite.py")
    return _pytest(folder, suite, cwd=folder, path=unpacked("kombu"))


def run_celery(folder: Path, *, some: bool = False, backend: str | None = None) -> dict[str, str]:
    """What became of each of Celery's tests: broker and backend ours, a side Redis for the rest."""
    source = unpacked("celery")
    redis = RedisServer(appendonly="no")
    redis.start()
    try:
        url = f"outlast+sqlite:///{folder}/celery.db"
        side = f"redis://127.0.0.1:{redis.port}/0"
        tests = [
            f"t/integration/{file}{name}"
            for file, names in SELECTION.items()
            for name in ([f"::{name}" for name in names.split()] if some else [""])
        ]
        return _pytest(
            folder, *tests, cwd=source, path=source,
            TEST_BROKER=url, TEST_BACKEND=side if backend == "redis" else url,
            REDIS_HOST="127.0.0.1", REDIS_PORT=str(redis.port), C_FORCE_ROOT="1",
        )  # fmt: skip
    finally:
        redis.remove()


def _pytest(
    folder: Path, *arguments: str | Path, cwd: Path, path: Path, **environment: str
) -> dict[str, str]:
    settings = folder / "theirs.ini"
    settings.write_text(
        "[pytest]\npython_classes = test_*\ntimeout = 90\nmarkers =\n    flaky\n    celery\n"
    )
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-c", settings, "--rootdir", cwd,
         "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "celery.contrib.pytest",
         f"--junitxml={report}", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": import_path(path, ROOT), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        ends = {child.tag: child for child in case}
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        bad = ends.get("failure", ends.get("error"))
        if bad is not None:
            found[name] = bad.get("message") or "failed"
        else:
            found[name] = "skipped" if "skipped" in ends else "passed"
    return found


def unexpected(found: dict[str, str]) -> dict[str, str]:
    """What failed and is not listed, and what is listed and passed."""
    bad = {name: why for name, why in found.items() if why not in ("passed", "skipped")}
    wrong = {name: why for name, why in bad.items() if name not in DIFFERENT}
    return wrong | {
        name: "is listed, and yet it passes" for name in DIFFERENT if found.get(name) == "passed"
    }


def main() -> None:
    wrong: dict[str, str] = {}
    for title, run in (
        ("kombu", run_kombu),
        ("celery, results ours", run_celery),
        ("celery, results on Redis", lambda folder: run_celery(folder, backend="redis")),
    ):
        with tempfile.TemporaryDirectory(prefix="outlast-theirs-") as folder:
            found = run(Path(folder))
        ends = [found.get(name, "") for name in found]
        failed = sorted(name for name in found if found[name] not in ("passed", "skipped"))
        print(f"{title}: {ends.count('passed')} passed, {ends.count('skipped')} skipped", failed)
        wrong |= unexpected(found)
    for name, why in wrong.items():
        print(f"UNEXPECTED {name}: {why}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
