"""The program as a whole: its help, its exit codes, its errors, and how little it loads."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from outlast import errors
from outlast.cli import program as program_module
from outlast.cli.program import COMMANDS, program

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.cli.conftest import Shop

ROOT = Path(__file__).parents[2]


def test_help_names_every_command_and_every_exit_code(shop: Shop) -> None:
    text = shop.ok("--help")
    for name in program.list_commands(click.Context(program)):
        assert re.search(rf"^  {name} ", text, re.MULTILINE), name
    for code in (0, 1, 2, 3, 4, 5, 70, 130):
        assert re.search(rf"^ +{code}  \w", text, re.MULTILINE), code


def test_the_pages_name_every_command_option_and_exit_code(shop: Shop) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for name in program.list_commands(click.Context(program)):
        assert f"## `outlast {name}" in page, name
        for option in re.findall(r"--[a-z-]+", shop.ok(name, "--help")):
            assert option in page, f"{name} {option}"
    for code in (0, 1, 2, 3, 4, 5, 70, 130):
        assert f"| {code} |" in page


def test_what_the_list_says_is_what_each_command_says(shop: Shop) -> None:
    """The list of commands is written apart, so that help needs no command's module."""
    context = click.Context(program)
    for name in program.list_commands(context):
        command = program.get_command(context, name)
        assert command is not None
        said = command.short_help or " ".join(shop.ok(name, "--help").split())
        assert COMMANDS[name][1].rstrip(".") in said, name


def test_a_command_that_is_not_installed_is_not_offered(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "absent", ("outlast.cli.absent", "Not there."))
    assert "absent" not in shop.ok("--help")
    assert shop.run("absent").exit_code == 2


def test_help_loads_neither_engine_nor_tables() -> None:
    code = (
        "import sys\nsys.argv = ['outlast', '--help']\nfrom outlast.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'asyncio', 'apsw', 'rich', 'outlast.app'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.alone
def test_help_is_there_at_once() -> None:
    """Measured as time of the processor, the best of several, since the machine may be busy."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "outlast", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(once() for _ in range(7)) < 0.15


def test_version(shop: Shop) -> None:
    assert re.fullmatch(r"outlast \d+\.\d+\.\d+\S*\n", shop.ok("--version"))


def test_a_mistyped_command_or_option_is_guessed(shop: Shop) -> None:
    result = shop.run("jbs")
    assert result.exit_code == 2
    assert "did you mean 'jobs'" in result.stderr
    result = shop.run("jobs", "--stat", "dead")
    assert result.exit_code == 2
    assert "--state" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigurationError("c"), 2),
        (errors.UnknownTask("u"), 2),
        (errors.EncodeError("e"), 2),
        (errors.Unsupported("u"), 2),
        (errors.JobNotFound("n"), 3),
        (errors.StoreUnavailable("s"), 4),
        (errors.StoreFull("s"), 4),
        (errors.StoreDamaged("s"), 4),
        (errors.SchemaMismatch("s"), 4),
        (errors.DurabilityError("s"), 4),
        (errors.EnqueueUncertain("u", ("id",)), 5),
        (errors.KeyConflict("k"), 1),
        (ZeroDivisionError("z"), 70),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_every_error_is_one_line_and_a_code(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(work: Coroutine[Any, Any, Any]) -> None:
        work.close()
        raise error

    monkeypatch.setattr("outlast.cli.target.asyncio.run", fail)
    result = stocked.run("status")
    assert result.exit_code == code
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) <= 1
    assert "Traceback" not in result.stderr
    if code not in (70, 130):
        assert result.stderr == f"Error: {error}\n"
    if code == 70:
        assert "ZeroDivisionError" in result.stderr
        assert "Traceback" in stocked.run("status", "--debug").stderr
        assert "Traceback" in stocked.run("--debug", "status").stderr


def test_what_was_far_too_long_is_not_repeated_whole(stocked: Shop) -> None:
    for args in (("show", "x" * 100_000), ("y" * 100_000,), ("jobs", "--state", "z" * 100_000)):
        result = stocked.run(*args)
        assert result.exit_code in (2, 3)
        assert 0 < len(result.stderr) < 5000


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outlast", "status"],
        capture_output=True, text=True, env={"PATH": ""}, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "which store?" in done.stderr


def test_a_closed_pipe_is_no_error(stocked: Shop) -> None:
    command = f"{sys.executable} -m outlast jobs --json --url {stocked.url} | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr


def test_no_mutable_state_is_shared_between_runs(shop: Shop) -> None:
    """Two runs in one process don't know each other's secrets or flags."""
    shop.run("status", "--debug", "--url", "postgresql://u:S3cr3t!pw@h/db")
    assert not any("S3cr3t" in str(value) for value in vars(program_module).values())


def test_every_command_takes_debug_and_help(shop: Shop) -> None:
    for name in program.list_commands(click.Context(program)):
        said = shop.ok(name, "--help")
        assert said.count("--debug") == 1, name
        assert "--help" in said, name
