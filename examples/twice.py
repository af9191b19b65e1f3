"""What may run twice: four effects, each in a naive form and in a mended one.

Any job can run twice: a worker may die after the work and before it can say so. See for yourself,
in this folder:

    outlast check twice:charge_naively --args '[42]' --observe twice:world --setup twice:clear
    outlast check twice:charge --args '[42]' --observe twice:world --setup twice:clear
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from outlast import Outlast, current

app = Outlast("sqlite:///twice.db")

folder = Path(tempfile.mkdtemp(prefix="twice-"))
log = folder / "log.txt"
lines = folder / "lines"
database = folder / "stock.db"


class Service:
    """Another company's computer: it does what it is asked, and drops a key that it has seen."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self._keys: set[str] = set()

    def ask(self, what: str, key: str | None = None) -> int:
        if key is None or key not in self._keys:
            self.done.append(what)
        if key is not None:
            self._keys.add(key)
        return len(self.done)


bank = Service()
mail = Service()


# -- a charge


@app.task(name="charge-naively")
async def charge_naively(order: int) -> int:
    number = bank.ask(f"charge {order}")
    return int(number)


@app.task(name="charge")
async def charge(order: int) -> int:
    # The key covers the moment between the bank's work and the writing down of the step.
    key = current().idempotency_key
    return int(await current().step("charge", bank.ask, f"charge {order}", key))


# -- an e-mail


@app.task(name="mail-naively")
async def mail_naively(order: int) -> None:
    mail.ask(f"to the buyer of {order}")
    mail.ask(f"to the packers of {order}")


@app.task(name="mail-once")
async def mail_once(order: int) -> None:
    for who in ("buyer", "packers"):
        # Two messages of one job: each has an id of its own, the same in every run.
        message_id = f"{who}-{current().idempotency_key}"
        await current().step("mail", mail.ask, f"to the {who} of {order}", message_id)


# -- a counter


@app.task(name="count-naively")
def count_naively(item: str) -> None:
    with closing(sqlite3.connect(database)) as stock, stock:
        stock.execute("UPDATE stock SET n = n - 1 WHERE item = ?", (item,))


@app.task(name="count-once")
def count_once(item: str) -> None:
    with closing(sqlite3.connect(database)) as stock, stock:
        # In one transaction: that the job was applied, and what it did.
        key = current().idempotency_key
        fresh = stock.execute("INSERT OR IGNORE INTO applied VALUES (?)", (key,)).rowcount
        if fresh:
            stock.execute("UPDATE stock SET n = n - 1 WHERE item = ?", (item,))


# -- a file


@app.task(name="append-naively")
def append_naively(text: str) -> None:
    with log.open("a") as file:
        file.write(f"{text}\n")


@app.task(name="append-once")
def append_once(text: str) -> None:
    # One file a job, whole or not there; whoever reads puts them together.
    part = lines / f"{current().idempotency_key}.part"
    part.write_text(f"{text}\n")
    os.replace(part, part.with_suffix(".line"))


# -- for `outlast check`


def clear() -> None:
    """Make the world anew."""
    bank.__init__()  # type: ignore[misc]
    mail.__init__()  # type: ignore[misc]
    log.write_text("")
    lines.mkdir(exist_ok=True)
    for line in lines.iterdir():
        line.unlink()
    database.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as stock, stock:
        stock.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, n INTEGER)")
        stock.execute("CREATE TABLE applied (job TEXT PRIMARY KEY)")
        stock.execute("INSERT INTO stock VALUES ('tea', 10)")


def world() -> dict[str, object]:
    """What everybody can see."""
    with closing(sqlite3.connect(database)) as stock:
        left = stock.execute("SELECT item, n FROM stock").fetchall()
    written = [log.read_text(), *(line.read_text() for line in lines.glob("*.line"))]
    return {"bank": bank.done, "mail": mail.done, "stock": left, "written": "".join(written)}
