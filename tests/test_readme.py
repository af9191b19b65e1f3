"""The README is true: its program runs, is killed, and ends as the README says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.proof.patience import until

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

SLOW = """open("begun", "w").close()
    while not __import__("os").path.exists("enough"):
        await asyncio.sleep(0.05)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def outlast(folder: Path, *args: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "outlast", *args, "--json"],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


CHANGED = """
import asyncio, os, sys
import outlast

async def main():
    {line}
    if sys.argv[1] == "first":
        for item in "abc":
            await queue.put(item)
        print(await queue.get(), flush=True)
        os._exit(9)
    items = [await queue.get() for _ in range(3)]
    print(*items, queue.empty(), flush=True)
    for _ in items:
        queue.task_done()
    await queue.join()

asyncio.run(main())
"""


def test_the_one_line(tmp_path: Path) -> None:
    """What was put, and not done when the program died, is there at the next start."""
    (line,) = re.findall(r"^(queue = outlast\.Queue.*?)  # after$", README, re.MULTILINE)

    def run(which: str) -> str:
        command = [sys.executable, "-c", CHANGED.format(line=line), which]
        return subprocess.run(
            command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=90, check=False
        ).stdout

    assert run("first") == "a\n"
    assert run("second") == "a b c True\n"
    assert (tmp_path / "shop.db").exists()


@pytest.mark.timeout(240)
def test_five_minutes(tmp_path: Path) -> None:
    """`python shop.py`, a worker, `kill -9` of its process, and the receipt."""
    program = next(block for block in blocks("python") if "@app.task" in block)
    slow = "await asyncio.sleep(10)"
    assert slow in program
    # The slow part says that it has begun, and takes as long as it is wanted to.
    (tmp_path / "shop.py").write_text(program.replace(slow, SLOW))
    at = ("--app", "shop:app")
    python = [sys.executable]
    shop = subprocess.Popen(
        [*python, "-u", "shop.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    worker = subprocess.Popen(
        [*python, "-m", "outlast", "worker", "shop:app", "--create"],
        cwd=tmp_path, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert shop.stdout is not None
        word, id = shop.stdout.readline().split()
        assert word == "stored"
        until((tmp_path / "begun").exists, 60.0, "it runs")
        assert outlast(tmp_path, "show", id, *at)["state"] == "running"
        (found,) = outlast(tmp_path, "workers", *at)["workers"]
        os.kill(found["pid"], signal.SIGKILL)
        (tmp_path / "enough").touch()
        assert shop.communicate(timeout=60)[0] == "receipt 42 sent to a@b.example\n"
        assert shop.returncode == 0
        job = outlast(tmp_path, "show", id, *at)
        assert (job["state"], job["attempt"], job["crashes"]) == ("done", 2, 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(20) == 0
    finally:
        for process in (shop, worker):
            process.kill()
            process.communicate()


def test_every_command_it_names_is_there() -> None:
    named = set(re.findall(r"^\$ outlast (\w+)", "\n".join(blocks("console")), re.MULTILINE))
    done = subprocess.run(
        [sys.executable, "-m", "outlast", "--help"], capture_output=True, text=True, check=True
    )
    there = set(re.findall(r"^  (\w+)  ", done.stdout, re.MULTILINE))
    assert named
    assert named <= there


def test_its_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    for page in pages:
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)\)", prose):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"
