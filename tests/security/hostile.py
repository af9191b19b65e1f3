"""Run by itself: a hundred thousand hostile messages under an audit hook; prints what it saw.

One JSON object: how many messages were refused and taken, the audited events, how far memory grew,
and which events the hook catches when they are made on purpose (so that silence means something).
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import zoneinfo
from dataclasses import dataclass, field
from datetime import datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any

import pydantic

from outlast import DecodeError
from outlast.codec import Signature

if TYPE_CHECKING:
    from collections.abc import Iterator

FORBIDDEN = (
    "import", "exec", "compile", "marshal.", "pickle.", "os.system", "os.exec", "os.spawn",
    "os.posix_spawn", "os.fork", "subprocess.", "socket.", "ctypes.", "urllib.", "http.", "shutil.",
    "os.remove", "os.rename", "os.mkdir", "os.putenv", "code.__new__", "cpython.run_",
)  # fmt: skip
# Any other call of open() is an event too: zones are read from files, by names that exist.
ZONE_FOLDERS = zoneinfo.TZPATH

WORDS = (
    "__class__", "__reduce__", "py/object", "py/reduce", "!!python/object/apply:os.system", "$type",
    "os.system", "posix.system", "builtins.eval", "Order", "Decimal", "str", "list[int]", "tzdata",
    "2024-01-01T00:00:00[../../../etc/passwd]", "2024-01-01T00:00:00[tzdata]", "Europe/Berlin",
    "2024-01-01T00:00:00[os]", "2024-01-01T00:00:00+01:00[Europe/Berlin]", "[_fold=1]", "root",
    "2024-01-01T00:00:00[Foo/Bar]", "2024-01-01T00:00:00[subprocess/Popen]", "\0", "*", "**",
    "cos\nsystem\n(S'id'\ntR.", "gASVHAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAJpZJSFlFKULg==",
    "__import__('os').system('id')", "{{7*7}}", "${jndi:ldap://x}", "\N{RIGHT-TO-LEFT OVERRIDE}",
)  # fmt: skip
PIECES = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\\ud800", b"null", b"NaN",
    b"1e999", b"-", b"9" * 50, b"9" * 5000, b"\xff", b"\0", b"[" * 100, b'{"a":' * 70,
    b"\x80\x04\x95", b"cos\nsystem\n(S'id'\ntR.", b"!!python/object:os.system", b"\x1f\x8b\x08",
)  # fmt: skip


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Order:
    number: int
    at: datetime
    lines: list[Order] = field(default_factory=list)
    price: Decimal | str | None = None


class Person(pydantic.BaseModel):
    name: str
    born: datetime | None = None


def everything(
    order: Order, /, color: Color, when: datetime | time, *more: Person | Order,
    tags: set[str] | frozenset[int] = frozenset(),
    table: dict[tuple[int, str], bytes] | None = None,
    zone: zoneinfo.ZoneInfo | None = None, plain: Any = None, **rest: Any,
) -> Order | Color | list[Person]:  # fmt: skip
    raise AssertionError("never called")


def small(to: str, copies: int = 1) -> None: ...


def tree(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(9 if depth else 6)
    if kind < 3:
        return chance.choice(WORDS)
    if kind < 6:
        return chance.choice((None, True, 0, -1, 2**70, 1.5, 10**400, "", "a" * 50))
    size = chance.randrange(4)
    if kind == 6:
        return [tree(chance, depth - 1) for _ in range(size)]
    keys = (*WORDS, *PARAMETERS)
    return {chance.choice(keys): tree(chance, depth - 1) for _ in range(size)}


PARAMETERS = ("order", "color", "when", "tags", "table", "zone", "plain", "number", "at", "lines")


def messages(count: int, chance: random.Random, good: list[bytes]) -> Iterator[bytes]:
    for _ in range(count):
        way = chance.randrange(4)
        if way == 0:
            yield json.dumps(tree(chance, 4)).encode()
            continue
        data = bytearray(chance.choice(good))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data) + 1)
            if way == 1:
                data[at : at + chance.randrange(3)] = chance.choice(PIECES)
            elif way == 2:
                text = json.dumps(tree(chance, 2)).encode()
                data[at : at + chance.randrange(9)] = text
            else:
                data[at : at + chance.randrange(20)] = b""
        yield bytes(data)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def made_on_purpose(events: list[str]) -> list[str]:
    """What the hook says of the very things that must not happen."""
    del events[:]
    pickle.loads(b"cbuiltins\nlen\n.")
    __import__("colorsys")
    exec("pass")
    open("/dev/null").close()
    return sorted({event.split()[0] for event in events})


def main(count: int) -> None:
    chance = random.Random(count)
    at = datetime(2024, 10, 27, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1)
    order = Order(1, at, [Order(2, at, [], Decimal("0.10"))], "free")
    large, little = Signature(everything), Signature(small)
    person = Person(name="a", born=datetime(2024, 1, 1))
    good = [
        large.encode((order, Color.RED, at, person, order), {"tags": {"a", "b"}, "x": [1, {}]}),
        large.encode((order,), {"color": Color.BLUE, "when": time(1), "table": {(1, "a"): b"b"}}),
        little.encode(("a@b.example",), {"copies": 2}),
        large.encode_result(order),
        large.encode_result([person]),
    ]
    events: list[str] = []
    watching = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event == "open":
            if not str(args[0]).startswith(ZONE_FOLDERS):
                events.append(f"open {args[0]}")
        elif event.startswith(FORBIDDEN):
            events.append(f"{event} {args[0] if args else ''}"[:100])

    sys.addaudithook(hook)
    outcomes = {"taken": 0, "refused": 0}
    decoders = (large.decode, little.decode, large.decode_result, large.digest)
    before = 0
    for number, data in enumerate(messages(count, chance, good)):
        if number == count // 10:  # by then whatever is kept once is kept
            watching = False
            before = resident()
        watching = True
        for decode in decoders:
            try:
                decode(data)
                outcomes["taken"] += 1
            except DecodeError:
                outcomes["refused"] += 1
    watching = False
    grown = resident() - before
    seen = sorted(set(events))
    watching = True
    caught = made_on_purpose(events)
    watching = False
    print(json.dumps({**outcomes, "events": seen, "grown": grown, "caught": caught}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
