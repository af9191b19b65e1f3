"""A folder with a small program in it, and the ways to run the command line there."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest
from click.testing import CliRunner

from outlast.cli.program import program
from outlast.job import Job
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from click.testing import Result

    from outlast.store import Ledger, Store

T = TypeVar("T")

PROGRAM = '''\
"""A small shop."""

from __future__ import annotations

from datetime import datetime

from outlast import Outlast, RetryPolicy

app = Outlast("sqlite:///shop.db")


@app.task(retry=RetryPolicy(attempts=5), timeout=30)
async def send_receipt(order: int, to: str = "", when: datetime | None = None) -> str:
    return f"receipt {order}"


@app.task(name="sum", queue="maths")
def add_up(*numbers: int) -> int:
    return sum(numbers)


def plain() -> None: ...
'''


@dataclass
class Shop:
    """The folder, its store, and the command line in it."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'shop.db'}"

    def run(self, *args: str, input: str | None = None) -> Result:
        """Run the command line in this process."""
        return CliRunner().invoke(program, args, input=input, prog_name="outlast")

    def ok(self, *args: str, input: str | None = None) -> str:
        """Its standard output; it must have succeeded."""
        result = self.run(*args, input=input)
        assert result.exit_code == 0, result.output
        return result.stdout

    def do(self, work: Callable[[Store, Ledger], Awaitable[T]], *, create: bool = True) -> T:
        """Do something with the store itself."""

        async def go() -> T:
            store = connect(self.url, create=create)
            await store.open()
            try:
                return await work(store, cast("Ledger", store))
            finally:
                await store.close()

        return asyncio.run(go())

    def add(self, *jobs: Job) -> None:
        """Store jobs."""
        self.do(lambda store, _: store.add(jobs))

    def get(self, id: str) -> Job | None:
        """A job as it stands."""
        (job,) = self.do(lambda _, ledger: ledger.get((id,)))
        return job


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """An empty folder with the program ``shop.py``, as the current one; no store yet."""
    before = set(sys.modules)
    (tmp_path / "shop.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    for name in ("OUTLAST_URL", "OUTLAST_URL_FILE", "OUTLAST_REQUIRE"):
        monkeypatch.delenv(name, raising=False)
    yield Shop(tmp_path)
    for name in set(sys.modules) - before:
        file: Any = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def stocked(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The same with OUTLAST_URL set and a store that holds one job."""
    monkeypatch.setenv("OUTLAST_URL", shop.url)
    shop.add(Job(id="job-1", task="shop.send_receipt", payload=b'{"order":1}'))
    return shop
