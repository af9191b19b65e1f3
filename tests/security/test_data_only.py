"""Data only: nothing that is stored, or sent, is ever imported, run or unpickled."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import BuiltinFunctionType, ModuleType
from typing import Any

import pytest

import outlast

HERE = Path(__file__).parent
SOURCES = sorted(Path(outlast.__file__).parent.rglob("*.py"))

# Each turns bytes into code or objects of any class.
MODULES = {
    "pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml",
    "ruamel", "jsonpickle", "copyreg", "code", "codeop", "imp", "xmlrpc", "celery", "kombu",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
# Who imports by a name that is not in the source, and who wrote that name: never a message.
IMPORTERS = {
    "__init__.py": "the source itself: each public name has one home",
    "app.py": "the source itself: what speaks to Celery is loaded when it is asked for",
    "cli/loading.py": "whoever types the command",
    "cli/program.py": "the source itself: each command has one home",
    "worker/apart.py": "the parent process: the module of a registered function",
    "worker/child.py": "the parent process: its own options",
    "contrib/celery/compat.py": "the user's program: autodiscover_tasks(its packages)",
    "contrib/celery/settings.py": "the user's program: config_from_object('its settings')",
}
CELERY = ("contrib/celery/", "contrib/kombu/", "doctor/celery", "cli/doctor.py")
"""Who deals with Celery has to import it, and to name the serializers that it refuses."""


def forbidden(tree: ast.AST, *, celery: bool = False) -> list[str]:
    """Every import, name or attribute in the code that leads to one of these."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Name):
            found += [node.id] if node.id in CALLS or node.id == "__builtins__" else []
            names = [node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = node.value.id
            found += [node.attr] if owner == "builtins" and node.attr in CALLS else []
            names = [node.attr] if node.attr in MODULES - {"code"} else []
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value in MODULES - {"code"} and not celery else []
        banned = MODULES - {"celery", "kombu"} if celery else MODULES
        found += [name for name in names if name.split(".")[0] in banned]
        if isinstance(node, ast.Name) and node.id == "code":
            found.remove("code")  # an exit code, most likely; the module would have to be imported
    return found


def imports_by_name(tree: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in {"import_module", "run_module"})
        or (isinstance(node, ast.Name) and node.id in {"import_module", "runpy"})
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_source_names_a_way_from_bytes_to_code(path: Path) -> None:
    tree = ast.parse(path.read_text())
    where = path.relative_to(Path(outlast.__file__).parent).as_posix()
    assert not forbidden(tree, celery=where.startswith(CELERY))
    assert not imports_by_name(tree) or where in IMPORTERS


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "import os, marshal", "from pickle import loads", "import yaml as y",
        "from concurrent import pickle", "import ruamel.yaml", "eval('1')", "x = exec",
        "__import__",
        "import builtins\nbuiltins.eval('1')", "multiprocessing.pickle.loads(b'')", "import code",
        "sys.modules['pickle']", "compile('1', '', 'eval')", "__builtins__['eval']",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert forbidden(ast.parse(source))


@pytest.mark.parametrize("source", ["import pickle", "yaml.load(b'')", "from kombu import pickle"])
def test_the_search_finds_it_beside_celery_too(source: str) -> None:
    assert forbidden(ast.parse(source), celery=True)


def test_the_search_lets_other_things_be() -> None:
    assert not forbidden(ast.parse("import re\nre.compile('a')\ncode = 1\nprocess.exit_code"))
    assert imports_by_name(ast.parse("importlib.import_module(name)"))
    assert imports_by_name(ast.parse("runpy.run_path(name)"))


def test_no_module_holds_one_of_them() -> None:
    """What the source can't show: a name that came along with another import."""
    found = []
    for info in pkgutil.walk_packages(outlast.__path__, "outlast."):
        if info.name.endswith("__main__"):
            continue
        where = info.name.partition(".")[2].replace(".", "/")
        banned = MODULES - {"celery", "kombu"} if where.startswith(CELERY) else MODULES
        for name, value in vars(importlib.import_module(info.name)).items():
            if name == "__builtins__":
                continue
            if isinstance(value, ModuleType) and value.__name__.split(".")[0] in banned:
                found.append(f"{info.name}.{name}")
            if isinstance(value, BuiltinFunctionType) and value.__name__ in CALLS:
                found.append(f"{info.name}.{name}")
    assert not found


@pytest.fixture(scope="module")
def outcome() -> Any:
    run = subprocess.run(
        [sys.executable, str(HERE / "hostile.py"), "100000"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(run.stdout)


@pytest.mark.timeout(240)
class TestAHundredThousandHostileMessages:
    def test_each_is_taken_or_refused(self, outcome: Any) -> None:
        assert outcome["taken"] + outcome["refused"] == 400_000
        assert outcome["refused"] > 200_000
        assert outcome["taken"] > 10_000

    def test_nothing_is_imported_run_opened_or_connected(self, outcome: Any) -> None:
        assert outcome["events"] == []

    def test_the_hook_would_have_seen_it(self, outcome: Any) -> None:
        assert {"import", "exec", "open", "pickle.find_class"} <= set(outcome["caught"])

    def test_memory_stays_flat(self, outcome: Any) -> None:
        assert outcome["grown"] < 20 * 2**20
