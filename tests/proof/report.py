"""Turns the results of the long runs into a page: what was tried, how often, and what was lost."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Line", "read_lines", "render", "write_report"]


WEAKER = (
    *("outlast-process", "outlast-memory", "outlast-tmpfs", "plain-normal", "plain-off"),
    *("postgres-process", "plain-postgres-async", "rabbit-classic"),
    *("redis-everysec", "redis-no", "redis-rdb", "redis-none"),
)
"""Settings that ask for less than power."""


class Line(msgspec.Struct, kw_only=True):
    """One piece of a long run."""

    kind: str
    seed: int
    date: str
    commit: str
    machine: str
    seconds: float
    command: str
    numbers: dict[str, Any]
    mended: str = ""
    """What it found, and where that was mended: only what ran afterwards counts."""

    def number(self, name: str) -> float:
        value = self.numbers.get(name, 0)
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def expected(self) -> bool:
        """Whether losses are what this piece is to show: it asks for less than power."""
        return self.numbers.get("load") in WEAKER

    def brief(self) -> str:
        shown = {
            name: value
            for name, value in self.numbers.items()
            if isinstance(value, int | float) and name not in ("seed", "seconds")
        }
        return " ".join(f"{name}={value:g}" for name, value in shown.items())


def read_lines(results: Path) -> list[Line]:
    """What was appended so far; a last line cut short is left out."""
    if not results.exists():
        return []
    raw = results.read_bytes().split(b"\n")
    return [msgspec.json.decode(line, type=Line) for line in raw[:-1] if line]


TITLES = {
    "kill": (
        "Kill -9, bare forks",
        "Processes that add, claim, settle, retry, give back and recover on one file, two at a"
        " time; each is killed at a random moment within its first 50 ms.",
    ),
    "fleet": (
        "Kill -9, real producers and workers",
        "`outlast worker` with its supervisor and children, workers inside a program, and"
        " producers, on one file; one of them is killed every 0 to 300 ms.",
    ),
    "deeds": (
        "Kill -9 in jobs with steps and transactions",
        "A worker kills itself as it is about to do its n-th write or sync, n drawn from 1 to 200,"
        " mostly from 1 to 50: each row of a transaction is there once, and what is remembered of a"
        " step is the last time it was done.",
    ),
    "deeds-postgres": (
        "The same on PostgreSQL",
        "The worker kills itself before or behind its n-th write to the server.",
    ),
    "deeds-redis": (
        "The same on Redis, with an inbox",
        "Steps are kept on the server, rows in a file of the user's: each is there once, since the"
        " task asks an inbox. Killed before or behind the n-th write to the server.",
    ),
    "recovery": (
        "Recovery of a killed worker's job",
        "One worker runs one job and is killed; another stands by. Measured from the kill to the"
        " next start.",
    ),
    "replay": (
        "Power-loss replay",
        "A recorded life of the store, cut after any operation on its files: nothing unsynced"
        " kept, all of it, any subset, any subset of 512-byte sectors. Every tenth image is run"
        " dry as well.",
    ),
    "cut": (
        "Real power cuts",
        "ext4 on a loop device, shut down in mid-write by EXT4_IOC_SHUTDOWN without flushing its"
        " journal, mounted again. The processes are frozen before the cut.",
    ),
    "cut-postgres": (
        "The same under a PostgreSQL server",
        "A private server whose data lie on that ext4: with its defaults, with a role that says"
        " synchronous_commit=off, and with fsync=off; beside it the driver alone, one row a"
        " commit. The server is started again on what the disk holds.",
    ),
    "cut-redis": (
        "Real power cuts under Redis",
        "The same under a private server, its folder on the file system that is cut, for each"
        " setting of what it keeps: what loses nothing is what doctor calls power.",
    ),
    "cut-rabbit": (
        "Real power cuts under RabbitMQ",
        "The same under a private broker: the store's quorum queues, and beside them the client"
        " alone, each message confirmed, on a quorum queue and on a durable classic one. With"
        " records in another store, both lie on that disk.",
    ),
    "nth": (
        "N-th failure",
        "One read, write, sync, truncation, creation or deletion fails (EIO, a full disk, half a"
        " write), once or for good; judged as if killed right then, and after an orderly end.",
    ),
    "calls": (
        "Kill at each system call that writes",
        "Killed by strace as it enters the n-th write, sync, truncate, unlink, rename or open of"
        " the store's files.",
    ),
    "flips": (
        "Flipped bits",
        "One bit of the database file flips, and the store is opened and run dry.",
    ),
    "mutants": (
        "Planted bugs",
        "Deliberate breakages of the store and the worker, each run against the tests that are"
        " meant to see it; besides those written by hand, some made by rule from the source.",
    ),
    "bounds": (
        "What takes how long at worst",
        "F8 to F11: repeats where nothing fails, recoveries, the end of a worker, a full disk; the"
        " 99th percentile of the samples against its limit. Run ahead of whatever else the machine"
        " does meanwhile (`chrt`), where the command says so.",
    ),
    "cases": (
        "The cases from the field, in full",
        "Each of the reported faults with the counts and waits in which it was reported, one file"
        " of tests/cases after the other (OUTLAST_FULL_CASES=1).",
    ),
    "bloat": (
        "An hour of jobs that come and go on PostgreSQL",
        "At a steady rate, what ended being kept for 20 seconds. A table has grown if it is half as"
        " large again in the last quarter of the time as it was in the second.",
    ),
    "sim": (
        "Deterministic simulation",
        "The engine under a seeded event loop with virtual time, and a store that fails.",
    ),
}
COUNTS = {
    "kill": ("rounds", "acknowledged", "uncertain", "runs", "explained"),
    "fleet": ("rounds", "acknowledged", "uncertain", "runs", "explained"),
    "deeds": ("rounds", "killed", "acknowledged", "effects", "repeated"),
    "deeds-postgres": ("rounds", "killed", "acknowledged", "effects", "repeated"),
    "deeds-redis": ("rounds", "killed", "acknowledged", "effects", "repeated"),
    "recovery": ("rounds", "acknowledged", "explained"),
    "replay": ("replays", "drained"),
    "cut": ("rounds", "empty", "acknowledged"),
    "cut-postgres": ("rounds", "empty", "acknowledged"),
    "cut-redis": ("rounds", "empty", "acknowledged"),
    "cut-rabbit": ("rounds", "empty", "acknowledged"),
    "nth": ("points", "loops", "clean", "errors", "acknowledged"),
    "calls": ("points", "hit", "acknowledged"),
    "flips": ("flips", "harmless", "buried", "damaged", "unnoticed"),
    "mutants": ("planted", "caught"),
    "bounds": ("samples",),
    "cases": ("passed", "failed"),
    "bloat": ("settled",),
    "sim": ("seeds", "dense", "steps", "hours", "years", "acknowledged", "explained", "zombies"),
}
WORDS = {
    "rounds": "rounds",
    "acknowledged": "jobs acknowledged",
    "uncertain": "adds in doubt (cut off by the kill)",
    "runs": "runs",
    "killed": "killed at a write",
    "effects": "effects found",
    "repeated": "works of steps done again, killed before they were remembered",
    "explained": "second runs, each explained by a kill",
    "replays": "images opened",
    "drained": "of these run dry",
    "empty": "rounds with nothing acknowledged yet (they prove nothing)",
    "points": "points struck",
    "errors": "calls that failed, with an error of outlast's",
    "hit": "really killed there",
    "flips": "bits flipped",
    "harmless": "hit nothing that is used",
    "buried": "buried the one job, the rest ran",
    "damaged": "refused with an error that names the damage",
    "unnoticed": "not noticed",
    "planted": "bugs planted",
    "caught": "caught",
    "passed": "passed",
    "failed": "failed",
    "seeds": "seeds",
    "dense": "of these dense: a dozen actors and faults all the time",
    "steps": "steps",
    "hours": "simulated hours of the dense ones",
    "years": "simulated years of the others",
    "zombies": "workers that woke up after their lease had gone to somebody else",
    "samples": "samples",
    "loops": "loops over one kind of failure begun",
    "settled": "jobs that came and went",
    "clean": "of these run until the path went through without reaching the failure",
}


def render(lines: Sequence[Line]) -> str:
    """The page."""
    by_kind: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if not line.mended:
            by_kind[line.kind].append(line)
    page = [
        "# Proof",
        "",
        "What outlast promises was tried, and this is what came of it. Every figure was made by",
        "the command beside it; `scripts/soak --minutes 60` runs all of them and adds to one file",
        "of results, and `scripts/soak --report` writes this page from it. Those of this page are",
        "in [proof.jsonl](proof.jsonl), each with the commit it ran at.",
        "",
        "*Lost* is an acknowledged job that is neither stored nor ended, or an acknowledged end",
        "that was undone. *Broken* is any other promise: a job invented, stuck, completed twice,",
        "run again without a cause on record, out of order in its lane, buried or cancelled",
        "without a reason.",
        "",
        *_header(lines),
        "",
        "| what | how often | lost | broken |",
        "| --- | --- | --- | --- |",
    ]
    for kind in TITLES:
        if by_kind[kind]:
            page.append(_row(kind, by_kind[kind]))
    for kind in TITLES:
        if by_kind[kind]:
            page += ["", *_section(kind, by_kind[kind])]
    page += _found(lines)
    return "\n".join(page) + "\n"


def _found(lines: Sequence[Line]) -> list[str]:
    """What was wrong, once each; the counts began anew when it was mended."""
    by_fault: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.mended:
            by_fault[line.mended].append(line)
    if not by_fault:
        return []
    page = ["", "## What was found", ""]
    page += [
        "Runs that found something, and those before them at the same code, don't count:",
        "",
    ]
    for fault, some in by_fault.items():
        kinds = ", ".join(dict.fromkeys(TITLES[line.kind][0].lower() for line in some))
        page.append(f"- {fault} ({kinds}: {len(some)} pieces left out of the sums)")
    return page


def _header(lines: Sequence[Line]) -> list[str]:
    if not lines:
        return ["Nothing was run yet."]
    hours = sum(line.seconds for line in lines) / 3600
    commits = list(dict.fromkeys(line.commit for line in lines))
    machines = list(dict.fromkeys(line.machine for line in lines))
    shown = ", ".join(commits[:3]) + (f" … {commits[-1]} ({len(commits)})" if commits[3:] else "")
    return [
        f"- run from {min(line.date for line in lines)} to {max(line.date for line in lines)},"
        f" {hours:.1f} hours in all",
        f"- commit: {shown}",
        *(f"- machine: {name}" for name in machines),
    ]


def _honest(lines: Sequence[Line]) -> list[Line]:
    """Without those that show what a weaker setting loses."""
    return [line for line in lines if not line.expected]


def _losses(lines: Sequence[Line]) -> tuple[int, dict[str, int]]:
    lost, broken = 0, defaultdict[str, int](int)
    for line in _honest(lines):
        lost += int(line.number("lost"))
        for name, count in line.numbers.get("broken", {}).items():
            if name in ("lost", "undone"):
                lost += count
            else:
                broken[name] += count
    return lost, dict(broken)


def _row(kind: str, lines: Sequence[Line]) -> str:
    lost, broken = _losses(lines)
    first = COUNTS[kind][0]
    often = f"{_sum(_honest(lines), first):,.0f} {WORDS[first]}"
    if kind == "mutants":
        return f"| {TITLES[kind][0]} | {often}, {_sum(lines, 'caught'):,.0f} caught | - | - |"
    said = ", ".join(f"{name} {count}" for name, count in broken.items()) or "0"
    return f"| {TITLES[kind][0]} | {often} | {lost} | {said} |"


def _sum(lines: Sequence[Line], name: str) -> float:
    return sum(line.number(name) for line in lines)


def _section(kind: str, lines: Sequence[Line]) -> list[str]:
    title, text = TITLES[kind]
    honest = _honest(lines)
    seeds = f"{min(line.seed for line in lines)} to {max(line.seed for line in lines)}"
    page = [f"## {title}", "", text, ""]
    page += [f"- {WORDS[name]}: {_sum(honest, name):,.0f}" for name in COUNTS[kind]]
    recovery = max((line.number("recovery_worst") for line in honest), default=0.0)
    if recovery and kind == "recovery":
        page.append(f"- worst recovery: {recovery:.2f} s")
    elif recovery:
        page.append(f"- longest wait for a second run, under fire all the while: {recovery:.2f} s")
    page.append(f"- seeds: {seeds}; {sum(line.seconds for line in lines) / 60:,.0f} minutes")
    lost, broken = _losses(lines)
    if kind != "mutants":
        said = ", ".join(f"{name} {count}" for name, count in broken.items()) or "nothing"
        page.append(f"- lost: {lost}; broken: {said}")
    for line in honest:
        if line.numbers.get("broken"):
            page += [f"  - {story.splitlines()[0]}" for story in line.numbers.get("stories", [])]
    page += _variants(kind, lines)
    page += ["", "Again:", "", "```", honest[-1].command if honest else lines[-1].command, "```"]
    return page


def _variants(kind: str, lines: Sequence[Line]) -> list[str]:
    """For cuts: each setting by itself, those that are meant to lose included. And each path."""
    if kind in ("replay", "nth", "calls"):
        return _paths(kind, lines)
    if kind == "bounds":
        return _bounds(lines)
    if kind == "cases":
        return _cases(lines)
    if kind == "bloat":
        return _bloat(lines[-1])
    if kind not in ("cut", "cut-postgres", "cut-redis", "cut-rabbit"):
        return []
    by_load: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_load[str(line.numbers.get("load"))].append(line)
    table = [
        "",
        "| setting | cuts | acknowledged | lost | worst cut | doctor says |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for load, some in sorted(by_load.items()):
        worst = max(line.number("worst") for line in some)
        cells = (_sum(some, "rounds"), _sum(some, "acknowledged"), _sum(some, "lost"), worst)
        said = next((each for line in some if (each := line.numbers.get("predicted"))), "-")
        table.append(f"| {load} | " + " | ".join(f"{cell:,.0f}" for cell in cells) + f" | {said} |")
    return table


def _paths(kind: str, lines: Sequence[Line]) -> list[str]:
    """Each path through the store by itself."""
    count = COUNTS[kind][0]
    by_acts: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_acts[str(line.numbers.get("acts", ""))].append(line)
    whole = {"nth": "loops run clean", "calls": "of all there are"}.get(kind, "")
    head = f"| path | {WORDS[count]} | lost | broken |"
    rule = "| --- | --- | --- | --- |"
    table = ["", head + f" {whole} |" * bool(whole), rule + " --- |" * bool(whole)]
    for acts, some in sorted(by_acts.items()):
        lost, broken = _losses(some)
        path = acts.replace(",", ", ").replace("_", " ") or "(not noted)"
        cells = f"{_sum(some, count):,.0f} | {lost} | {sum(broken.values())} |"
        row = f"| {path} | {cells}"
        if kind == "nth":
            row += f" {_clean(some)} |"
        if kind == "calls":
            row += f" {_swept(some)} |"
        table.append(row)
    return table


def _option(line: Line, name: str) -> str:
    """What a piece's command says after an option."""
    words = line.command.split()
    return words[words.index(name) + 1] if name in words else ""


def _clean(lines: Sequence[Line]) -> str:
    """Kinds of failure that were tried at every point until the path went through clean."""
    clean: dict[str, set[int]] = {}
    for line in lines:
        first = int(_option(line, "--skip") or 0)
        done = clean.setdefault(_option(line, "--kinds"), set())
        done.update(range(first, first + int(line.number("clean"))))
    return f"{sum(map(len, clean.values()))} of {LOOPS}"


LOOPS = 13
"""Kinds of failure in a sweep: ``nth.ENDLESS_LOOPS``."""


def _swept(lines: Sequence[Line]) -> str:
    """How many of a path's calls were struck by the newest pieces of each part."""
    parts = {_option(line, "--part"): line for line in lines if not _is_short(line, lines)}
    there = [int(line.number("of")) for line in lines if line.number("of")]
    struck = sum(int(line.number("points")) for line in parts.values())
    return f"{min(struck, there[-1]):,} of {there[-1]:,}" if there else f"{struck:,}"


def _is_short(line: Line, lines: Sequence[Line]) -> bool:
    """Whether another piece of the same part struck more."""
    part, points = _option(line, "--part"), line.number("points")
    return any(_option(each, "--part") == part and each.number("points") > points for each in lines)


def _bounds(lines: Sequence[Line]) -> list[str]:
    """Each promise with what was measured last, and how busy the machine was meanwhile."""
    last = {
        each["name"]: {"load": line.numbers.get("load", "?"), **each}
        for line in lines
        for each in line.numbers.get("bounds", [])
    }
    table = [
        "",
        "| figure | samples | median | 99 % | worst | at most | load |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in sorted(last.values(), key=lambda each: str(each["name"])):
        values = [each["p50"], each["p99"], each["worst"], each["limit"]]
        cells = " | ".join(f"{value:g} {each['unit']}" for value in values)
        table.append(f"| {each['name']} | {each['samples']:,} | {cells} | {each['load']} |")
    return table


def _cases(lines: Sequence[Line]) -> list[str]:
    """The verdict on each file."""
    last = {str(line.numbers["case"]): line for line in lines if "case" in line.numbers}
    if not last:
        return []
    table = ["", "| case | passed | failed | minutes |", "| --- | --- | --- | --- |"]
    for case, line in sorted(last.items()):
        cells = f"{line.number('passed'):g} | {line.number('failed'):g} | {line.seconds / 60:.1f}"
        table.append(f"| {case.upper().replace('_', ' ', 1).replace('_', ' ')} | {cells} |")
    return table


def _bloat(line: Line) -> list[str]:
    """How large each table was."""
    tables: Any = line.numbers.get("tables", {})
    heads = "| table | second quarter, at most | last quarter, at most |"
    return ["", heads, "| --- | --- | --- |"] + [
        f"| {name} | {early / 1e6:.1f} MB | {late / 1e6:.1f} MB |"
        for name, (early, late) in tables.items()
        if late > 1e6
    ]


def write_report(lines: Sequence[Line], page: Path) -> None:
    """Write the page, and say where."""
    page.parent.mkdir(exist_ok=True)
    page.write_text(render(lines))
    print(f"{page}: {len(lines)} pieces")
