"""The house rules a machine can check: lengths, names, words, sleeps, the map, the fragments."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "outlast").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py")) + sorted((ROOT / "bench").rglob("*.py"))

MODULE_LINES = 500
FUNCTION_LINES = 60
SAME_LINES = 8

FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "misc", "broker", "backend", "manager"}

# In pieces, so that this file doesn't hold what it forbids.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")
HOSTS_AND_PATHS = re.compile(
    r"/wo" r"rk/|/ro" r"ot/|bash_" r"jobs|py" r"pi\.org|python" r"hosted|registry\.np" r"mjs"
    r"|deb\.deb" r"ian|\.lib" r"rary/|\bsub" r"agents?\b"
)  # fmt: skip

HOLLOW = re.compile(r"|#.*|(\w+)=\1,|[\])}]+,?")

# A test waits for the thing itself. These files may sleep, for the reason given.
SLEEPERS = {
    "tests/cases/program.py": "its jobs take a while, so that something can happen meanwhile",
    "tests/cases/test_c27_cancelled_claims.py": "the moment of a cancellation is drawn by lot",
    "tests/proof/patience.py": "polls a condition for the rigs, and lets a fault's moment be drawn",
    "tests/proof/tolls.py": "its jobs take a while, so that they are hit while they run",
    "tests/proof/plain.py": "the same, for a broker alone",
}


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked() -> list[Path]:
    """Every file git knows or would add, that is there and is text."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    binary = {".png", ".svg", ".ico", ".db"}
    return [ROOT / n for n in names if (ROOT / n).is_file() and Path(n).suffix not in binary]


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_module_is_short_named_well_and_says_what_lives_there(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= MODULE_LINES, f"{label(path)} is longer than {MODULE_LINES} lines"
    assert path.stem not in FORBIDDEN_NAMES
    assert path.parent.name not in FORBIDDEN_NAMES
    assert (ast.get_docstring(tree) or "").split("\n")[0].endswith((".", ":")), "first line: what?"
    if len(tree.body) > 1:
        assert "from __future__ import annotations" in text


@pytest.mark.parametrize("path", [*SOURCES, *TESTS, *SCRIPTS], ids=label)
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{label(path)}:{node.lineno} {node.name}"
        for node in functions(ast.parse(path.read_text()))
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES
    ]
    assert not long, f"longer than {FUNCTION_LINES} lines"


def test_nothing_is_unfinished() -> None:
    found = [
        f"{label(path)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found


def test_no_words_of_one_machine_in_the_repository() -> None:
    found = [
        f"{label(path)}:{number}: {line.strip()[:90]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if HOSTS_AND_PATHS.search(line)
    ]
    assert not found


def test_errors_are_not_swallowed() -> None:
    """No bare except, and none of everything whose body does nothing."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            everything = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
            )
            silent = all(isinstance(step, ast.Pass | ast.Continue) for step in node.body)
            if node.type is None or (everything and silent):
                found.append(f"{label(path)}:{node.lineno}")
    assert not found


def test_no_type_ignores_in_the_source() -> None:
    ignore = "# type: " + "ignore"
    assert not [label(path) for path in SOURCES if ignore in path.read_text()]


@pytest.mark.parametrize("path", TESTS, ids=label)
def test_tests_do_not_sleep(path: Path) -> None:
    if label(path) in SLEEPERS:
        return
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner = node.func.value
        if node.func.attr == "sleep" and isinstance(owner, ast.Name):
            zero = len(node.args) == 1 and ast.unparse(node.args[0]) == "0"
            if owner.id in {"asyncio", "time"} and not zero:
                found.append(f"{label(path)}:{node.lineno}")
    assert not found, "wait for the thing itself"


def test_sleepers_are_still_there() -> None:
    assert [name for name in SLEEPERS if not (ROOT / name).exists()] == []
    assert all(SLEEPERS.values())


def body_lines(path: Path) -> list[list[tuple[int, str]]]:
    """The lines of each function's body, numbered, without blanks, comments and the docstring.

    Lines that only hand on a keyword argument (``queue=queue,``) don't count either.
    """
    text = path.read_text()
    lines = text.splitlines()
    bodies = []
    for node in functions(ast.parse(text)):
        body = node.body[1:] if ast.get_docstring(node) else node.body
        if body:
            span = range(body[0].lineno, (node.end_lineno or body[0].lineno) + 1)
            numbered = [(n, lines[n - 1].strip()) for n in span]
            bodies.append([(n, line) for n, line in numbered if not HOLLOW.fullmatch(line)])
    return bodies


def test_nothing_is_written_twice() -> None:
    seen: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for path in SOURCES:
        for body in body_lines(path):
            for start in range(len(body) - SAME_LINES + 1):
                window = body[start : start + SAME_LINES]
                seen[tuple(line for _, line in window)].add(f"{label(path)}:{window[0][0]}")
    twice = [sorted(places) for places in seen.values() if len(places) > 1]
    assert not twice, f"the same {SAME_LINES} lines stand in several places"


def test_the_map_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = [str(path.relative_to(ROOT / "src" / "outlast")) for path in SOURCES]
    absent = [name for name in names if f"`{name}`" not in text]
    assert not absent, "add a row to the files table of ARCHITECTURE.md"
    table = re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE)
    assert [name for name in table if name not in names] == [], "rows of modules that are gone"
    assert len(table) == len(set(table))


def test_fragments_are_named_so_that_the_changelog_can_be_built() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = "|".join(kind["directory"] for kind in config["type"])
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    bad = [p.name for p in fragments if not re.fullmatch(rf"\+?[\w.-]+\.({kinds})\.md", p.name)]
    assert not bad, f"name fragments <topic>.<{kinds}>.md"
    assert all(path.read_text().strip() for path in fragments)


def test_a_change_since_the_last_release_has_a_fragment() -> None:
    def git(*args: str) -> str:
        command = ["git", *args]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    released = git("log", "-1", "--format=%H", "--", "CHANGELOG.md")
    changed = git("diff", "--name-only", released or "HEAD", "HEAD", "--", "src")
    fragments = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert fragments or not changed


def test_the_lock_file_holds_hashes_and_no_address() -> None:
    text = (ROOT / "requirements" / "ci.txt").read_text()
    pins = re.findall(r"^\S+==", text, re.MULTILINE)
    assert len(pins) > 20
    assert "http" not in text
    blocks = re.split(r"^(?=\S+==)", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
