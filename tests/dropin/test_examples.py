"""The programs in examples/: killed and resumed, and running on `asyncio.Queue` by one line."""

from __future__ import annotations

import contextlib
import importlib
import os
import pydoc
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from tests.proof.processes import import_path

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
NAMES = ["checkout", "crawler", "service"]
OURS = re.compile(r"^(queue: .* = )outlast\.Queue\(.*\)  # was: (asyncio\.Queue\(.*\))$", re.M)
CUSTOMERS = 150


def program(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


@contextlib.contextmanager
def running(path: Path, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", path, *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": import_path(ROOT / "src")},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run(path: Path, folder: Path, *arguments: str) -> str:
    with running(path, folder, *arguments) as process:
        out, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        return out


def run_with_kills(path: Path, folder: Path, progress: Path, *arguments: str) -> tuple[str, int]:
    """Kill it each time it has made some progress, until it gets to its end or has had enough."""
    chance, kills = Random(8), 0
    while True:
        size = progress.stat().st_size if progress.exists() else 0
        enough = size + chance.randrange(1, 400)
        with running(path, folder, *arguments) as process:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.005)
                if kills < 4 and progress.exists() and progress.stat().st_size >= enough:
                    process.kill()
            assert process.stdout is not None
            assert process.stderr is not None
            if process.returncode == 0:
                return process.stdout.read(), kills
            assert process.returncode == -signal.SIGKILL, process.stderr.read()
        kills += 1


def on_asyncio(name: str, folder: Path) -> Path:
    """The program with that one line changed, in another folder."""
    changed, count = OURS.subn(lambda match: match[1] + match[2], program(name).read_text())
    assert count == 1
    path = folder / f"{name}_on_asyncio.py"
    path.write_text(changed)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_one_line_makes_the_difference(name: str, tmp_path: Path) -> None:
    theirs, ours = on_asyncio(name, tmp_path).read_text(), program(name).read_text()
    lines = zip(theirs.splitlines(), ours.splitlines(), strict=True)
    assert sum(one != other for one, other in lines) == 1


# -- the supermarket


def check_receipts(folder: Path) -> None:
    lines = (folder / "receipts.txt").read_text().splitlines()
    receipts = {int(line.split()[0]): int(line.split()[1]) for line in lines}
    assert len(receipts) == len(lines), "each customer has one receipt"
    assert receipts == {number: 1 + number % 7 for number in range(CUSTOMERS)}


def test_the_checkout_on_asyncio(tmp_path: Path) -> None:
    out = run(on_asyncio("checkout", tmp_path), tmp_path, str(CUSTOMERS))
    assert out == f"{CUSTOMERS} customers served, the queue is empty\n"
    check_receipts(tmp_path)


@pytest.mark.timeout(360)
def test_the_checkout_is_killed_and_resumed(tmp_path: Path) -> None:
    out, kills = run_with_kills(
        program("checkout"), tmp_path, tmp_path / "receipts.txt", str(CUSTOMERS)
    )
    assert kills >= 2
    assert out == f"{CUSTOMERS} customers served, the queue is empty\n"
    check_receipts(tmp_path)


# -- the crawler


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real pages, with real links: what Python writes of its own modules."""
    folder = tmp_path_factory.mktemp("site")
    names = """asyncio collections datetime email email.message email.parser email.policy functools
    heapq html html.parser itertools json json.decoder json.encoder json.scanner json.tool logging
    logging.handlers math os pathlib random re string sys threading time types unittest
    unittest.case unittest.mock warnings""".split()
    for name in names:
        module = importlib.import_module(name)
        page = pydoc.html.page(pydoc.describe(module), pydoc.html.document(module, name))
        (folder / f"{name}.html").write_text(page)
    index = pydoc.html.index(str(Path(os.__file__).parent))
    (folder / "index.html").write_text(pydoc.html.page("Index of Modules", index))
    return folder


def check_pages(folder: Path, found: str) -> None:
    lines = (folder / "pages.txt").read_text().splitlines()
    pages = {line.split("\t")[0] for line in lines}
    assert len(lines) == len(pages), "one line for each page"
    assert found == f"{len(pages)} pages\n"
    assert {"index.html", "json.html", "json.decoder.html", "re.html"} <= pages
    assert len(pages) >= 25


def test_the_crawler_on_asyncio(tmp_path: Path, site: Path) -> None:
    out = run(on_asyncio("crawler", tmp_path), tmp_path, str(site / "index.html"))
    check_pages(tmp_path, out)


@pytest.mark.timeout(360)
def test_the_crawler_is_killed_and_resumed(tmp_path: Path, site: Path) -> None:
    reference = tmp_path / "reference"
    reference.mkdir()
    run(on_asyncio("crawler", tmp_path), reference, str(site / "index.html"))
    start = str(site / "index.html")
    out, kills = run_with_kills(program("crawler"), tmp_path, tmp_path / "pages.txt", start)
    assert kills >= 2
    check_pages(tmp_path, out)
    both = [(folder / "pages.txt").read_text().splitlines() for folder in (reference, tmp_path)]
    assert sorted(both[0]) == sorted(both[1])


# -- the service


def address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line.startswith("http://"), process.stderr and process.stderr.read()
    return line


def post(url: str, body: str) -> int:
    try:
        with urllib.request.urlopen(url, data=body.encode(), timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def done(url: str) -> list[str]:
    with urllib.request.urlopen(url, timeout=60) as response:
        return list(response.read().decode().splitlines())


def test_the_service_on_asyncio(tmp_path: Path) -> None:
    with running(on_asyncio("service", tmp_path), tmp_path, "0") as process:
        url = address(process)
        for number in range(5):
            assert post(url, f'{{"number": {number}, "item": "tea"}}') == 202
        assert post(url, '{"number": 1}') == 400
        while len(done(url)) < 5:
            pass


@pytest.mark.timeout(240)
def test_what_the_service_has_accepted_survives_its_kills(tmp_path: Path) -> None:
    accepted: list[str] = []
    for _ in range(3):
        with running(program("service"), tmp_path, "0") as process:
            url = address(process)
            for _ in range(10):
                number = len(accepted)
                assert post(url, f'{{"number": {number}, "item": "tea"}}') == 202
                accepted.append(f"{number} tea")
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert len((tmp_path / "orders.txt").read_text().splitlines()) < len(accepted)
    with running(program("service"), tmp_path, "0") as process:
        url = address(process)
        while len(done(url)) < len(accepted):
            assert process.poll() is None
        assert done(url) == accepted, "each once, in order"
