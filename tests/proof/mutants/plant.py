"""Plants a bug in a copy of the product, and runs the tests that are meant to catch it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGE", "Bug", "Outcome", "is_caught", "plant", "run_planted"]

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "outlast"


class Bug(NamedTuple):
    """A change of one place in one file, and the tests that must not let it pass."""

    name: str
    file: str
    """Below the package."""
    old: str
    """The text to be replaced; it must be there exactly once."""
    new: str
    tests: tuple[str, ...]
    """What pytest is given; it stops at the first failure."""
    at: int = -1
    """Where in the file the text stands, if it may stand there more than once."""


class Outcome(NamedTuple):
    """How the tests ended: 0 nothing was noticed, 1 a test failed; else something else is wrong."""

    code: int
    output: str


def run_planted(bug: Bug, seconds: float = 240.0) -> Outcome:
    """Run the tests of a bug against a copy of the product that has it. The work tree stays clean.

    The copy comes first on the path of the tests and of every process that they start.
    """
    with tempfile.TemporaryDirectory(prefix="outlast-bug-") as scratch:
        copy = Path(scratch) / "outlast"
        # With what Python compiled, whose times stay true: each process would do it anew.
        shutil.copytree(PACKAGE, copy)
        if bug.file:
            plant(copy / bug.file, bug)
            for compiled in (copy / bug.file).parent.glob("__pycache__/*.pyc"):
                compiled.unlink()
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:randomly"]
        # What a bug lets hang need not hang for as long as a busy machine may take.
        words += [
            "-o",
            "timeout=30",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=--import-mode=importlib",
            *bug.tests,
        ]
        env = {**os.environ, "PYTHONPATH": scratch}
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
            env.pop(name, None)
        try:
            done = subprocess.run(
                words, cwd=ROOT, env=env, capture_output=True, text=True,
                check=False, timeout=seconds,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            # Tests that stand still fail by themselves, long before.
            return Outcome(124, f"not done within {seconds:g} s")
        return Outcome(done.returncode, (done.stdout + done.stderr)[-4000:])


def plant(path: Path, bug: Bug) -> None:
    """Make the change. Raises ``LookupError`` if the place is gone, or not the only one."""
    text = path.read_text()
    if bug.at >= 0 and text.startswith(bug.old, bug.at):
        path.write_text(text[: bug.at] + bug.new + text[bug.at + len(bug.old) :])
        return
    found = text.count(bug.old)
    if found != 1:
        raise LookupError(
            f"{bug.name}: {bug.file} has {found} times what is to be replaced, not once;"
            f" plant the bug anew:\n{bug.old}"
        )
    path.write_text(text.replace(bug.old, bug.new))


def is_caught(bug: Bug) -> str:
    """Empty if a test noticed; else what to say."""
    outcome = run_planted(bug)
    if outcome.code == 1:
        return ""
    if outcome.code == 0:
        return f"{bug.name}: nobody noticed"
    return f"{bug.name}: pytest ended with {outcome.code}\n{outcome.output}"
