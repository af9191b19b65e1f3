"""Bugs that nobody thought of: made from the source by rule.

    condition   one term of a WHERE or ON clause holds always
    commit      a COMMIT, ROLLBACK or BEGIN is left out
    awaits      two neighbouring statements, one of which awaits, change places
    statement   one call that stands for itself is left out

``python -m tests.proof.mutants.generic`` lists them; with ``--run N`` it tries N of them.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.proof.mutants.plant import PACKAGE, Bug, run_planted
from tests.proof.mutants.planted import conformance, engine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PICKED", "Pick", "bugs", "find"]

Rule = Literal["condition", "commit", "awaits", "statement"]

SQLITE = "stores/sqlite"
KILLERS: dict[str, tuple[str, ...]] = {
    f"{SQLITE}/claims.py": conformance(
        "claim_order", "delay", "lanes", "pause", "cancel_safety", "depth", "crashes", "keys"
    ),
    f"{SQLITE}/verdicts.py": conformance("settle", "recover", "depth", "lanes", "cancel", "keys"),
    f"{SQLITE}/upkeep.py": conformance(
        "recover", "renew", "crashes", "cancel", "revive", "prune", "purge", "workers", "lanes"
    ),
    f"{SQLITE}/moves.py": conformance("add", "keys", "lanes", "capacity", "depth", "delay"),
    f"{SQLITE}/keys.py": conformance("keys"),
    f"{SQLITE}/writer.py": (
        *conformance("add", "keys", "cancel_safety", "wait", "lifecycle"),
        "tests/proof/test_nth.py",
        "tests/proof/test_faults.py",
    ),
    f"{SQLITE}/schema.py": (
        "tests/proof/test_replay.py", "tests/stores", *conformance("lifecycle")[2:],
    ),
    "worker/worker.py": engine("test_worker_stops") + engine("test_worker_runs"),
    "worker/crew.py": engine("test_worker_runs") + engine("test_worker_keeps")
    + engine("test_worker_stops"),
    "worker/settle.py": engine("test_worker_keeps") + engine("test_worker_stops"),
    "worker/renew.py": engine("test_worker_keeps"),
    "worker/claims.py": engine("test_worker_runs") + engine("test_worker_keeps"),
    "worker/tend.py": engine("test_worker_keeps") + engine("test_supervisor"),
    "worker/side.py": engine("test_worker_keeps") + engine("test_worker_threads"),
}  # fmt: skip
"""The tests that look after each file."""

TERM = re.compile(
    r"(?P<lead>\b(?:AND|WHERE|ON) )"
    r"(?P<term>\+?[\w.]+ (?:<>|<=|>=|=|<|>) (?:\+?[\w.]+\b|\?\d*|%d)(?! [*+/-]|'))"
)
STATEMENT = re.compile(r"^(?P<indent> +)(?P<call>\S.*execute\(\"(?:COMMIT|ROLLBACK)\"\))$", re.M)


class Pick(NamedTuple):
    """Names one generated bug without line numbers: it stays the same while code moves."""

    file: str
    rule: Rule
    text: str
    """How what is replaced begins, its blanks made single."""
    nth: int = 0


def find(pick: Pick) -> Bug:
    """Generate that bug. Raises ``LookupError`` if the source has no such place any more."""
    same = [bug for rule, bug in _made(pick.file) if rule == pick.rule and _is(bug, pick.text)]
    if len(same) <= pick.nth:
        raise LookupError(f"{pick} is not generated any more: pick another")
    return same[pick.nth]


def bugs() -> list[Bug]:
    """Every bug that the rules make of the files that have tests named above."""
    return [bug for file in KILLERS for bug in {bug.at: bug for _, bug in _made(file)}.values()]


def _is(bug: Bug, text: str) -> bool:
    flat = " ".join(bug.old.split())
    return flat == text or flat.startswith(text + " ")


def _made(file: str) -> Iterator[tuple[Rule, Bug]]:
    text = (PACKAGE / file).read_text()
    # A partial index with another condition would only be refused by the planner.
    conditions = () if file.endswith("schema.py") else _conditions(text)
    for rule, at, old, new in (*conditions, *_commits(text), *_moves(text)):
        line = text.count("\n", 0, at) + 1
        name = f"{file}:{line} {rule}: {' '.join(old.split())[:60]}"
        yield rule, Bug(name, file, old, new, KILLERS[file], at)


Made = tuple[Rule, int, str, str]


def _conditions(text: str) -> Iterator[Made]:
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        start, end = _span(text, node)
        for found in TERM.finditer(text, start, end):
            term = found["term"]
            holes = re.findall(r"\?\d*", term)
            always = f"{holes[0]} IS NOT NULL" if holes else "1"
            if "%d" in term:
                always = "%d > -1"
            yield "condition", found.start("term"), term, always


def _commits(text: str) -> Iterator[Made]:
    for found in STATEMENT.finditer(text):
        yield "commit", found.start("call"), found["call"], "None"


def _moves(text: str) -> Iterator[Made]:
    """Swapped awaits and statements left out."""
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, after in pairwise(body):
            if _is_simple(before) and _is_simple(after) and (_awaits(before) or _awaits(after)):
                start, middle = _span(text, before)
                begin, end = _span(text, after)
                swapped = text[begin:end] + text[middle:begin] + text[start:middle]
                yield "awaits", start, text[start:end], swapped
        for step in body:
            if isinstance(step, ast.Expr) and isinstance(step.value, ast.Call | ast.Await):
                start, end = _span(text, step)
                old = text[start:end]
                if not re.search(r"\b(log|_log)\.", old):
                    yield "statement", start, old, "None"


def _is_simple(step: ast.stmt) -> bool:
    return isinstance(step, ast.Expr | ast.Assign)


def _awaits(step: ast.stmt) -> bool:
    return any(isinstance(part, ast.Await) for part in ast.walk(step))


def _span(text: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node stands in the text, in characters: the source of the product is ASCII."""
    lines = text.splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    return start, end


CLAIMS, VERDICTS, UPKEEP = (f"{SQLITE}/{name}.py" for name in ("claims", "verdicts", "upkeep"))
MOVES, WRITER, SCHEMA = (f"{SQLITE}/{name}.py" for name in ("moves", "writer", "schema"))

PICKED: tuple[Pick, ...] = (
    Pick(CLAIMS, "condition", "due <= ?"),
    Pick(CLAIMS, "condition", "lane = ?2"),
    Pick(CLAIMS, "condition", "attempt > 0"),
    Pick(VERDICTS, "condition", "jobs.receipt = +v.r"),
    Pick(UPKEEP, "condition", "jobs.receipt = +v.r"),
    Pick(UPKEEP, "condition", "lease <= ?"),
    Pick(UPKEEP, "condition", "worker = ?"),
    Pick(UPKEEP, "condition", "gone_at <= ?"),
    Pick(f"{SQLITE}/keys.py", "condition", "keys.until <= ?"),
    Pick(MOVES, "condition", "queue = ?"),
    Pick(WRITER, "commit", 'self._connection.execute("COMMIT")'),
    Pick(WRITER, "commit", 'self._connection.execute("ROLLBACK")'),
    Pick(SCHEMA, "commit", 'connection.execute("COMMIT")'),
    Pick("worker/settle.py", "awaits", "batch, self.waiting"),
    Pick("worker/crew.py", "statement", "self._settle(verdict)"),
    Pick("worker/renew.py", "statement", "self._refuse(refused)"),
)
"""Those that are tried each time: they are known to be real bugs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    told = parser.parse_args()
    made = [bug for bug in bugs() if told.only in bug.name]
    if not told.run:
        print("\n".join(bug.name for bug in made))
        return
    chosen = random.Random(told.seed).sample(made, min(told.run, len(made)))
    missed = 0
    for bug in chosen:
        began = time.monotonic()
        code = run_planted(bug).code
        missed += code == 0
        said = {0: "NOT NOTICED", 1: "caught"}.get(code, f"pytest ended with {code}")
        print(f"{said:12} {time.monotonic() - began:5.1f} s  {bug.name}", flush=True)
    print(f"{missed} of {len(chosen)} were not noticed")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
