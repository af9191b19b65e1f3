"""The public surface: exactly these names, loaded late, each at home where people import it."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast import errors


def names_for_type_checkers() -> set[str]:
    """What the `if TYPE_CHECKING` block of the package imports or declares."""
    tree = ast.parse(Path(outlast.__file__).read_text())
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    names = set()
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            assert all(alias.asname is None for alias in node.names)
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
    return names


def test_all_is_sorted_and_holds_no_name_twice() -> None:
    assert outlast.__all__ == sorted(set(outlast.__all__))


def test_type_checkers_see_the_same_names() -> None:
    assert names_for_type_checkers() == set(outlast.__all__)


def test_every_name_is_there() -> None:
    for name in outlast.__all__:
        assert getattr(outlast, name) is not None
    assert set(outlast.__all__) <= set(dir(outlast))


def test_every_error_is_exported() -> None:
    assert set(errors.__all__) <= set(outlast.__all__)
    made_here = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, BaseException) and name[0] != "_"
    }
    assert made_here == set(errors.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'outlast' has no attribute 'Celery'"):
        outlast.Celery  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError):
        from outlast import Broker  # type: ignore[attr-defined]  # noqa: F401


def test_the_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert outlast.__version__ == version("outlast")


OURS = [
    getattr(outlast, name)
    for name in ("Outlast", "Task", "AsyncTask", "SyncTask", "Call", "Handle", *errors.__all__)
]


@pytest.mark.parametrize("thing", OURS, ids=lambda thing: thing.__name__)
def test_what_people_see_lives_where_they_import_it_from(thing: Any) -> None:
    if thing.__module__.startswith("asyncio"):
        assert thing.__name__ in ("QueueEmpty", "QueueFull", "QueueShutDown")
    else:
        assert thing.__module__ == "outlast"
        assert pickle.loads(pickle.dumps(thing)) is thing


def modules_after(statement: str, folder: Path) -> set[str]:
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=90, check=True
    )
    return set(done.stdout.split())


def test_importing_it_loads_next_to_nothing(tmp_path: Path) -> None:
    loaded = modules_after("import outlast", tmp_path)
    assert {name for name in loaded if name.startswith("outlast")} == {"outlast"}
    assert loaded.isdisjoint({"apsw", "msgspec", "asyncio", "click", "rich"})


def test_defining_tasks_loads_no_database(tmp_path: Path) -> None:
    program = (
        "from outlast import Outlast, RetryPolicy, Retry, current; "
        "app = Outlast('sqlite:///shop.db'); app.task(name='it')(lambda: None)"
    )
    loaded = modules_after(program, tmp_path)
    assert loaded.isdisjoint({"apsw", "click", "rich", "outlast.worker", "outlast.stores.sqlite"})
    assert list(tmp_path.iterdir()) == [], "nothing is created before it is opened"


def test_a_memory_store_loads_no_database(tmp_path: Path) -> None:
    program = (
        "import asyncio; from outlast import Outlast; app = Outlast('memory://'); "
        "asyncio.run(app.open())"
    )
    assert modules_after(program, tmp_path).isdisjoint({"apsw", "click", "rich"})


def test_it_is_typed() -> None:
    assert (Path(outlast.__file__).parent / "py.typed").exists()
