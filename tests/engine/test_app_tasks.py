"""Registering functions: names, kinds, and two functions that want one name."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import subprocess
import sys
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from outlast import AsyncTask, ConfigurationError, DuplicateTask, Outlast, SyncTask, Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

app = Outlast("memory://")


@app.task
async def send(order: int, to: str = "a@b.example") -> str:
    """Send it."""
    return f"{order} {to}"


@app.task(processes=True)
def crunch(order: int) -> int:
    return order * 2


@pytest.fixture
def fresh() -> Outlast:
    return Outlast("memory://")


async def test_a_task_is_still_the_function() -> None:
    assert await send(1, to="c@d.example") == "1 c@d.example"
    assert crunch(21) == 42
    assert send.__name__ == "send"
    assert send.__doc__ == "Send it."
    assert send.__wrapped__ is send.fn  # type: ignore[attr-defined]


def test_what_a_task_tells_of_itself(fresh: Outlast) -> None:
    @fresh.task
    def plain() -> None: ...

    assert (send.kind, crunch.kind, plain.kind) == ("async", "process", "thread")
    assert isinstance(send, AsyncTask)
    assert isinstance(crunch, SyncTask)
    assert app.tasks[send.name] is send
    assert send.options.queue == "default"


def test_the_tasks_can_be_looked_at_but_not_changed() -> None:
    with pytest.raises(TypeError):
        app.tasks["x"] = send  # type: ignore[index]


def test_the_name_is_the_module_and_the_function(fresh: Outlast) -> None:
    @fresh.task
    async def inner() -> None: ...

    class Shop:
        @staticmethod
        @fresh.task
        def sell() -> None: ...

    assert send.name == f"{__name__}.send"
    assert inner.name == f"{__name__}.test_the_name_is_the_module_and_the_function.inner"
    assert Shop.sell.name.endswith("_function.Shop.sell")
    assert fresh.task(name="own:name-1")(crunch.fn).name == "own:name-1"


def test_a_name_that_is_not_legal_asks_for_another(fresh: Outlast) -> None:
    with pytest.raises(ConfigurationError, match="give the task one with name="):
        fresh.task(lambda: None)

    def größe() -> None: ...

    with pytest.raises(ConfigurationError, match="give the task one with name="):
        fresh.task(größe)
    assert fresh.task(name="groesse")(größe).name == "groesse"


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHOP = """
from outlast import Outlast
app = Outlast("memory://")
@app.task
async def sell(n: int) -> int:
    return n
if __name__ == "__main__":
    print(sell.name)
"""


def test_a_script_and_the_worker_that_imports_it_agree_on_names(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    assert run("shop.py", cwd=tmp_path) == "shop.sell"
    assert run("-m", "shop", cwd=tmp_path) == "shop.sell"
    assert run("-c", "import shop; print(shop.sell.name)", cwd=tmp_path) == "shop.sell"


def test_the_same_in_a_package(tmp_path: Path) -> None:
    package = tmp_path / "acme"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shop.py").write_text(SHOP)
    (package / "__main__.py").write_text(SHOP)
    assert run("-m", "acme.shop", cwd=tmp_path) == "acme.shop.sell"
    assert run("-m", "acme", cwd=tmp_path) == "acme.__main__.sell"


def test_a_program_on_the_command_line_has_no_file(tmp_path: Path) -> None:
    assert run("-c", SHOP, cwd=tmp_path) == "__main__.sell"


def test_a_spawned_child_knows_it_by_the_same_name(tmp_path: Path) -> None:
    """multiprocessing imports the script again, as `__mp_main__`."""
    (tmp_path / "shop.py").write_text(
        SHOP + "    import multiprocessing\n"
        "    child = multiprocessing.get_context('spawn').Process(target=show)\n"
        "    child.start(); child.join()\n"
        "else:\n    pass\n"
    )
    text = (tmp_path / "shop.py").read_text()
    (tmp_path / "shop.py").write_text(
        text.replace("if __name__", "def show():\n    print(sell.name)\n\nif __name__")
    )
    assert run("shop.py", cwd=tmp_path).split() == ["shop.sell", "shop.sell"]


def load(path: Path, name: str, app: Outlast) -> ModuleType:
    """Import a file anew under that name, with the app in it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)["app"] = app
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def module_name() -> Any:
    name = "outlast_test_tasks_of_a_shop"
    yield name
    sys.modules.pop(name, None)


def test_a_module_that_is_imported_again_replaces_its_tasks(
    fresh: Outlast, tmp_path: Path, module_name: str
) -> None:
    (tmp_path / "shop.py").write_text("@app.task(name='sell')\nasync def sell(): return 1\n")
    load(tmp_path / "shop.py", module_name, fresh)
    module = load(tmp_path / "shop.py", module_name, fresh)
    assert fresh.tasks["sell"] is module.sell


def test_two_functions_of_one_module_with_one_name(
    fresh: Outlast, tmp_path: Path, module_name: str
) -> None:
    (tmp_path / "shop.py").write_text("@app.task\nasync def sell(): ...\n" * 2)
    with pytest.raises(DuplicateTask) as caught:
        load(tmp_path / "shop.py", module_name, fresh)
    assert f"{tmp_path / 'shop.py'}:1" in str(caught.value)
    assert f"{tmp_path / 'shop.py'}:3" in str(caught.value)
    assert f"{module_name}.sell" in str(caught.value)


def test_one_piece_of_code_that_makes_two_functions(fresh: Outlast) -> None:
    """They look the same and are not: each has its own n."""
    functions: list[Callable[[], int]] = []
    for n in (1, 2):

        def sell(n: int = n) -> int:
            return n

        functions.append(sell)
    fresh.task(functions[0])
    with pytest.raises(DuplicateTask, match="sell"):
        fresh.task(functions[1])
    assert fresh.tasks[f"{__name__}.test_one_piece_of_code_that_makes_two_functions.sell"]() == 1


def test_the_same_function_twice(fresh: Outlast) -> None:
    fresh.task(name="one")(send.fn)
    with pytest.raises(DuplicateTask, match="'one'"):
        fresh.task(name="one")(send.fn)
    fresh.task(name="two")(send.fn)


def test_in_an_interactive_session_a_function_is_typed_again(
    fresh: Outlast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    for number, line in enumerate(["return 1", "return 2"]):
        names: dict[str, Any] = {"app": fresh, "__name__": "__main__"}
        source = f"@app.task\ndef sell():\n    {line}\n"
        exec(compile(source, f"<input-{number}>", "exec"), names)
    assert fresh.tasks["__main__.sell"]() == 2


async def generator() -> Any:
    yield 1


class Shop:
    def sell(self, n: int) -> None: ...

    def __call__(self, n: int) -> None: ...


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (partial(print, 1), "def"),
        (print, "print.*def"),
        (Shop, "Shop.*def"),
        (Shop(), "def"),
        ("send", "'send'.*def"),
        (generator, "generator.*yields"),
        (Shop.sell, "Shop.sell.*self"),
    ],
)
def test_what_can_t_be_a_task(fresh: Outlast, made: Any, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        fresh.task(name="it")(made)
    assert fresh.tasks == {}


def test_processes_are_for_plain_functions(fresh: Outlast) -> None:
    with pytest.raises(ConfigurationError, match="processes=True"):
        fresh.task(processes=True)(send.fn)


def test_a_task_of_a_task(fresh: Outlast) -> None:
    with pytest.raises(ConfigurationError, match=r"send.*def"):
        fresh.task(send)


def test_a_decorated_function_keeps_its_signature(fresh: Outlast) -> None:
    def loud(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await fn(*args, **kwargs)

        return wrapper

    @fresh.task(name="loud")
    @loud
    async def sell(n: int) -> int:
        return n

    assert repr(sell) == "<Task loud(n)>"


def test_a_task_is_pickled_by_name() -> None:
    """So that a pool of processes can be handed one; it is data about data, never a payload."""
    assert pickle.loads(pickle.dumps(crunch)) is crunch
    assert copy.copy(crunch) is crunch
    assert copy.deepcopy(crunch) is crunch
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(crunch.using(delay=1))


def test_a_bound_copy_is_the_same_kind_of_task() -> None:
    bound = crunch.using(delay=1)
    assert isinstance(bound, SyncTask)
    assert bound is not crunch
    assert bound(21) == 42
    assert bound.__name__ == "crunch"
    assert isinstance(bound, Task)
