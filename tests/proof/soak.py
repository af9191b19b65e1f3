"""The long run: every rig in turn, in pieces, for as long as told; each piece is one line of JSON.

``scripts/soak --minutes 60``, with ``--only kill,cut`` for some alone; ``scripts/soak --report``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from tests.proof.cases import FILES
from tests.proof.report import Line, read_lines, write_report

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RIGS", "Rig", "run_piece"]

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "soak-results" / "results.jsonl"
PIECE = 60.0
"""Seconds of one piece, roughly: what is cut short loses no more than that."""


class Rig(NamedTuple):
    """A rig as the soak sees it: a module that takes a seed and a budget, and prints JSON."""

    module: str
    words: Callable[[int], list[str]]
    """The further words of its command, by seed: which of its variants is due."""
    share: float = 1.0
    """Pieces it gets in a round, compared with the others."""
    root: bool = False
    server: str = ""
    """A program that must be installed."""
    before: tuple[str, ...] = ()
    """What the command begins with, ahead of Python."""


LIVES = (
    "add_one_by_one,add_many",
    "add_keyed,add_keyed",
    "add_many,claim_and_settle",
    "add_many,settle_every_way",
    "add_many,lose_a_worker,claim_and_settle",
    "add_many,ask",
    "fill_the_log",
    "all_at_once,all_at_once",
    "add_one_by_one,come_back,claim_and_settle,come_back",
    "add_many,migrate,claim_and_settle",
    "add_many,keep,purge",
)
PATHS = (
    "add_one_by_one,claim_and_settle",
    "add_keyed,settle_every_way",
    "add_many,lose_a_worker,ask",
    "fill_the_log,come_back",
    "all_at_once,come_back",
    "add_many,keep,purge",
    "add_many,migrate,claim_and_settle",
    "add_many,back_up,claim_and_settle",
)
KINDS = ("write", "sync,truncate,delete,create", "read")
CALLS = (
    ["--acts", "add_one_by_one,add_keyed"],
    ["--acts", "claim_and_settle,settle_every_way", "--before", "add_many"],
    ["--acts", "lose_a_worker,ask,come_back", "--before", "add_many"],
    ["--acts", "fill_the_log", "--before", "add_many"],
    ["--acts", "keep,purge", "--before", "add_many"],
    ["--acts", "migrate", "--before", "add_many,claim_and_settle"],
    ["--acts", "back_up", "--before", "add_many,claim_and_settle"],
)
SERVER_LOADS = (
    *("postgres-power", "postgres-role-off", "postgres-power", "postgres-process"),
    *("plain-postgres", "plain-postgres-async"),
)
BROKER_LOADS = (
    *("rabbit-outlast", "rabbit-records-sqlite", "rabbit-quorum", "rabbit-records-postgres"),
    *("rabbit-outlast", "rabbit-records-redis", "rabbit-classic"),
)
PARTS = 4
DEEDS = ("--rounds", "1000000", "--beside", "4")
SCENES = ("stop", "reopen", "host,calm,disk", "servers")
AHEAD = ("chrt", "-r", "10")
"""Ahead of whatever else runs on the machine: its work is not what is measured."""
LOADS = (
    *("outlast-power", "outlast-power", "outlast-power", "plain-full", "outlast-process"),
    *("outlast-power", "outlast-power", "outlast-power", "outlast-memory", "outlast-tmpfs"),
)
REDIS_LOADS = (
    *("redis-always", "redis-everysec", "redis-always", "redis-no", "redis-always"),
    *("redis-rdb", "redis-always", "redis-none"),
)


def _variant(options: tuple[str, ...], flag: str) -> Callable[[int], list[str]]:
    return lambda seed: [flag, options[seed % len(options)]]


def _failures(seed: int) -> list[str]:
    """Each path through the store with each kind of operation, before it begins anew."""
    acts, kinds = divmod(seed % (len(PATHS) * len(KINDS)), len(KINDS))
    return ["--acts", PATHS[acts], "--kinds", KINDS[kinds]]


def _calls(seed: int) -> list[str]:
    """Each path in parts, before it begins anew."""
    which, part = divmod(seed % (len(CALLS) * PARTS), PARTS)
    return [*CALLS[which], "--part", f"{part}/{PARTS}"]


def _unshared(options: tuple[str, ...]) -> Callable[[int], list[str]]:
    return lambda seed: ["--rounds", "1000000", "--load", options[seed % len(options)]]


RIGS: dict[str, Rig] = {
    "kill": Rig("tests.proof.kill", lambda seed: ["--rounds", "1000000"], 3.0),
    "fleet": Rig("tests.proof.fleet", lambda seed: ["--rounds", "1000000"], 2.0),
    "deeds": Rig("tests.proof.deeds", lambda seed: [*DEEDS], 1.0),
    "deeds-postgres": Rig(
        "tests.proof.deeds", lambda seed: [*DEEDS, "--postgres"], 0.25, server="postgres"
    ),
    "deeds-redis": Rig(
        "tests.proof.deeds", lambda seed: [*DEEDS, "--redis"], 0.25, server="redis-server"
    ),
    "recovery": Rig("tests.proof.recovery", lambda seed: ["--rounds", "20"], 0.25),
    "replay": Rig("tests.proof.replay", _variant(LIVES, "--acts"), 4.0),
    "cut": Rig("tests.proof.cut", _unshared(LOADS), 3.0, root=True),
    "cut-postgres": Rig(
        "tests.proof.cut_postgres", _unshared(SERVER_LOADS), 0.5, root=True, server="postgres"
    ),
    "cut-redis": Rig(
        *("tests.proof.cut_redis", _unshared(REDIS_LOADS), 0.5), root=True, server="redis-server"
    ),
    "cut-rabbit": Rig(
        "tests.proof.cut_rabbit", _unshared(BROKER_LOADS), 0.25, root=True, server="rabbitmq-server"
    ),
    "nth": Rig("tests.proof.nth", _failures, 1.0),
    "calls": Rig("tests.proof.calls", _calls, 1.0),
    "flips": Rig("tests.proof.faults", lambda seed: ["flip-bits"], 0.25),
    "bounds": Rig(
        *("tests.proof.bounds", _variant(SCENES, "--only"), 0.25), root=True, before=AHEAD
    ),
    "cases": Rig("tests.proof.cases", _variant(tuple(FILES), "--only"), 0.25),
    # In one piece of an hour: scripts/soak --only bloat --piece 3600
    "bloat": Rig("tests.proof.bloat", lambda seed: [], 0.0, server="postgres"),
    "mutants": Rig("tests.proof.mutants", lambda seed: [], 1.0),
    "sim": Rig("tests.proof.sim", lambda seed: [], 2.0),
}


def command_of(name: str, seed: int, budget: float) -> list[str]:
    """The words after ``python -m`` that repeat a piece."""
    rig = RIGS[name]
    return [rig.module, *rig.words(seed), "--seed", str(seed), "--budget", f"{budget:g}"]


def run_piece(name: str, seed: int, budget: float) -> Line:
    """One piece in processes of its own. A rig that fails to run is a finding as well."""
    words = command_of(name, seed, budget)
    first = RIGS[name].before
    apart = ["unshare", "--mount", "--propagation", "private"] if RIGS[name].root else []
    began = time.monotonic()
    done = subprocess.run(
        [*apart, *first, sys.executable, "-m", *words],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=budget * 3 + 3600,
    )
    numbers: dict[str, Any] = {}
    if done.returncode == 0:
        numbers = msgspec.json.decode(done.stdout.strip().split(b"\n")[-1])
    else:
        numbers = {"broken": {"rig": 1}, "stories": [said(done.stderr)]}
    return Line(
        kind=name,
        seed=seed,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        commit=commit(),
        machine=machine(),
        seconds=round(time.monotonic() - began, 1),
        command=" ".join((*first, "python", "-m", *words)),
        numbers=numbers,
    )


def said(stderr: bytes) -> str:
    """The last of what it said, without where things lie on this machine."""
    text = stderr.decode(errors="replace")
    for place in (str(ROOT), os.path.dirname(os.__file__), sys.prefix):
        text = text.replace(place + os.sep, "")
    return text[-3000:]


def commit() -> str:
    """What is checked out, with a mark if the work tree differs in the product or the rigs."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    dirty = git("status", "--porcelain", "--", "src", "tests/proof")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if dirty else "")


def machine() -> str:
    import apsw

    return (
        f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs,"
        f" Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    )


def usable(name: str) -> str:
    """Why a rig can't run here, or nothing."""
    rig = RIGS[name]
    if importlib.util.find_spec(rig.module) is None:
        return "is not built yet"
    if rig.root and os.geteuid() != 0:
        return "needs root"
    places = Path("/usr/lib").glob(f"*/*/bin/{rig.server}") if rig.server else ()
    if rig.before and not shutil.which(rig.before[0]):
        return f"needs {rig.before[0]}"
    if rig.server and not (shutil.which(rig.server) or any(places)):
        return f"needs {rig.server}"
    return ""


def soak(
    names: list[str], minutes: float, piece: float, results: Path, only: int | None = None
) -> int:
    """Go round until the time is over; the number of pieces that found something.

    Seeds go on from the last in the results. With ``only``, one piece of each with that seed.
    """
    results.parent.mkdir(exist_ok=True)
    deadline = time.monotonic() + minutes * 60
    seeds = dict.fromkeys(names, 0)
    for line in read_lines(results):
        seeds[line.kind] = max(seeds.get(line.kind, 0), line.seed + 1)
    if only is not None:
        seeds = dict.fromkeys(names, only)
    owed = dict.fromkeys(names, 0.0)
    found = 0
    while names and (left := deadline - time.monotonic()) > 5:
        for name in names:
            owed[name] += RIGS[name].share
        name = max(owed, key=lambda each: owed[each])
        owed[name] -= sum(RIGS[each].share for each in names)
        line = run_piece(name, seeds[name], min(piece, left))
        seeds[name] += 1
        _append(results, line)
        broken = bool(line.numbers.get("broken")) and not line.expected
        found += broken
        if only is not None:
            names = [each for each in names if each != name]
        print(f"{line.date} {name:8} {'BROKEN' if broken else 'ok':6} {line.brief()}", flush=True)
    return found


def _append(results: Path, line: Line) -> None:
    with results.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="kinds by comma: " + ", ".join(RIGS))
    parser.add_argument("--piece", type=float, default=PIECE, help="seconds of one piece")
    parser.add_argument("--seed", type=int, help="only this one: a variant that is to be done")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="write docs/proof.md, run nothing")
    told = parser.parse_args()
    if told.report:
        write_report(read_lines(told.results), ROOT / "docs" / "proof.md")
        return
    names = told.only.split(",") if told.only else list(RIGS)
    if unknown := [name for name in names if name not in RIGS]:
        parser.error(f"no rig is called {', '.join(unknown)}; there are {', '.join(RIGS)}")
    for name in list(names):
        if reason := usable(name):
            print(f"left out: {name} {reason}")
            names.remove(name)
    sys.exit(1 if soak(names, told.minutes, told.piece, told.results, told.seed) else 0)


if __name__ == "__main__":
    main()
