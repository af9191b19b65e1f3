"""C51: the password of a store is in nothing that is printed, whatever goes wrong."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from outlast.cli.program import program
from outlast.cli.screen import Screen
from outlast.cli.secrets import has_password, passwords, redact
from outlast.job import Failure, Job, dead

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

    from outlast.store import Ledger, Store

CANARY = "S3cr3t!pw"
CODED = "S3cr3t%21pw"
SPELLINGS = (CANARY, CODED, "S3cr3t", "3cr3t")

ARGUMENTS: dict[str, tuple[str, ...] | None] = {
    "status": (), "jobs": (), "workers": (), "health": (), "show": ("x",), "retry": ("x",),
    "cancel": ("x",), "purge": ("default",), "pause": ("default",), "resume": ("default",),
    "backup": ("copy.db",), "enqueue": ("shop:sum",), "migrate": ("--check",), "worker": None,
    "demo": None, "bench": None, "doctor": None, "check": None, "move": None, "relay": None,
}  # fmt: skip
"""What each command is given besides; None where it opens no store of
the user's, or becomes another program (tests/cli/test_worker.py looks at that one), or names its
stores in ways of its own, which are tried below."""


def clean(text: str) -> bool:
    return not any(spelling in text for spelling in SPELLINGS)


def test_every_command_is_tried() -> None:
    context = click.Context(program)
    assert set(program.list_commands(context)) <= set(ARGUMENTS)


@pytest.mark.parametrize("password", [CANARY, CODED])
@pytest.mark.parametrize("how", ["option", "environment", "file", "app", "argument"])
@pytest.mark.parametrize("command", [name for name, rest in ARGUMENTS.items() if rest is not None])
@pytest.mark.parametrize("debug", [(), ("--debug",)], ids=["plain", "debug"])
def test_no_command_shows_it(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    how: str,
    password: str,
    debug: tuple[str, ...],
) -> None:
    if command not in program.list_commands(click.Context(program)):
        pytest.skip(f"{command} is not installed")
    url = f"postgresql://shop:{password}@db.example:5432/shop"
    naming: tuple[str, ...] = ()
    if how == "option":
        naming = ("--url", url)
    elif how == "argument":
        naming = (url,)
    elif how == "environment":
        monkeypatch.setenv("OUTLAST_URL", url)
    elif how == "file":
        (shop.folder / "url").write_text(url)
        monkeypatch.setenv("OUTLAST_URL_FILE", str(shop.folder / "url"))
    elif how == "app":
        (shop.folder / "secretive.py").write_text(
            f"from outlast import Outlast\napp = Outlast({url!r})\n"
        )
        naming = ("--app", "secretive:app")
    result = shop.run(command, *(ARGUMENTS[command] or ()), *naming, *debug)
    assert clean(result.output + result.stderr)
    if how in ("option", "environment", "file") and command != "enqueue":
        assert "postgresql://shop:***@" in result.output


@pytest.mark.parametrize("password", [CANARY, CODED])
@pytest.mark.parametrize("how", ["argument", "environment"])
@pytest.mark.parametrize("more", [(), ("--json",), ("--debug",)], ids=str)
def test_doctor_does_not_show_it(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    password: str,
    how: str,
    more: tuple[str, ...],
) -> None:
    url = f"postgresql://shop:{password}@db.example:5432/shop"
    given: tuple[str, ...] = (url,)
    if how == "environment":
        monkeypatch.setenv("OUTLAST_URL", url)
        given = ()
    before = ("--debug",) if "--debug" in more else ()
    result = shop.run(*before, "doctor", *given, *(m for m in more if m != "--debug"))
    assert result.exit_code != 0
    assert clean(result.output + result.stderr)
    assert ("list of processes" in result.stderr) is (how == "argument")


@pytest.mark.parametrize("password", [CANARY, CODED])
@pytest.mark.parametrize("debug", [(), ("--debug",)], ids=["plain", "debug"])
def test_commands_between_two_stores_do_not_show_it(
    shop: Shop, password: str, debug: tuple[str, ...]
) -> None:
    url = f"postgresql://shop:{password}@db.example:5432/shop"
    for words in (
        ("move", url, "sqlite:///new.db"), ("move", "sqlite:///shop.db", url),
        ("move", url, url), ("relay", url, "--url", "sqlite:///shop.db"), ("relay", url),
        ("relay", "sqlite:///shop.db", "--url", url),
    ):  # fmt: skip
        result = shop.run(*words, *debug)
        assert result.exit_code != 0, words
        assert clean(result.output + result.stderr), words


def test_a_password_on_the_command_line_is_warned_of(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"postgresql://shop:{CANARY}@db.example/shop"
    assert "list of processes" in shop.run("status", "--url", url).stderr
    monkeypatch.setenv("OUTLAST_URL", url)
    assert "list of processes" not in shop.run("status").stderr


def test_what_jobs_carry_is_masked_too(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's own error may hold the URL, and its traceback too."""
    text = f"cannot reach postgresql://shop:{CANARY}@db/x with password {CANARY} or {CODED}"

    async def fill(store: Store, _: Ledger) -> None:
        await store.add([Job(id="job-1", task="t", payload=b'{"to":"%b"}' % text.encode())])
        (claim,) = await store.claim(["default"], ["t"], 1, 60, "w")
        failure = Failure(kind="error", type="OSError", message=text, traceback=f"...\n{text}")
        await store.settle([dead(claim, failure)])

    shop.do(fill)
    # The store of this test is a file; the secret is that of another service of the same name.
    monkeypatch.setenv("OUTLAST_URL", f"postgresql://shop:{CANARY}@db/x")
    for args in (("jobs",), ("jobs", "--json"), ("show", "job-1"), ("show", "job-1", "--json")):
        result = shop.run(*args, "--url", shop.url)
        assert result.exit_code == 0
        assert clean(result.output)
        assert "***" in result.output


def test_a_traceback_hides_it_even_where_the_source_line_shows_it(shop: Shop) -> None:
    (shop.folder / "broken.py").write_text(
        f"url = 'postgresql://shop:{CANARY}@db/x'; raise RuntimeError('no ' + url)\n"
    )
    result = shop.run("status", "--app", "broken:app", "--debug")
    assert "Traceback" in result.stderr
    assert "RuntimeError" in result.stderr
    assert clean(result.stderr)


def test_logs_hide_it_at_every_level(capsys: pytest.CaptureFixture[str]) -> None:
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level
    try:
        logging.basicConfig(level="DEBUG", force=True)
        Screen((), {"OUTLAST_URL": f"redis://:{CANARY}@h"}).mask_logging()
        log = logging.getLogger("outlast.test")
        log.debug("connecting to %s", f"redis://:{CANARY}@h", extra={"job": f"x{CODED}"})
        try:
            raise OSError(f"refused: {CANARY}")
        except OSError:
            log.exception("failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    text = capsys.readouterr().err
    assert "connecting to redis://:***@h job=x***" in text
    assert "OSError: refused: ***" in text
    assert clean(text)


def test_a_real_process_with_everything_on(shop: Shop) -> None:
    environment = {
        **os.environ, "OUTLAST_URL": f"postgresql://shop:{CANARY}@127.0.0.1:1/x",
        "PYTHONASYNCIODEBUG": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-m", "outlast", "--debug", "status", "--debug"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert "Traceback" in done.stderr
    assert clean(done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a://u:p@h/d", "a://u:***@h/d"),
        ("a://:p@h", "a://:***@h"),
        ("a://u:p/q@r@h/d x", "a://u:***@h/d x"),
        ("a://u@h/d", "a://u@h/d"),
        ("a://h:5432/d", "a://h:5432/d"),
        ("sqlite:////srv/x.db", "sqlite:////srv/x.db"),
        ("a://h/d?password=p&x=1", "a://h/d?password=***&x=1"),
        ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
        ("one a://u:p@h, two b://v:q@i", "one a://u:***@h, two b://v:***@i"),
    ],
)
def test_redact(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert has_password(text) is (text != shown)


@pytest.mark.parametrize(
    "text",
    ["A" * 2_000_000, "a://b:" * 300_000, "a://" * 400_000 + "@", "a://u:" + "p@" * 900_000 + "h"],
    ids=["letters", "URLs", "schemes", "at signs"],
)
def test_a_megabyte_that_somebody_stored_holds_nobody_up(text: str) -> None:
    """It would take an hour if each character were compared with all that follow."""
    shown = redact(text)
    assert passwords(text) == [] or has_password(text)
    assert shown == redact(shown)
    assert len(shown) <= len(text)


def test_the_spellings_of_a_password() -> None:
    found = passwords(f"a://u:{CODED}@h")
    assert CANARY in found
    assert CODED in found
    assert passwords("a://h/d") == []
    # Masking such words everywhere would hide the answer and protect nothing.
    assert passwords("postgresql://postgres:postgres@h/d") == []
    assert passwords("a://u:abc@h") == []


@pytest.mark.parametrize(
    "text",
    [
        CANARY,
        f"shop:{CANARY}",
        f"//shop:{CANARY}@db.example/shop",
        f"shop:{CANARY}@db.example/shop",
    ],
)
@pytest.mark.parametrize("how", ["environment", "file", "option", "argument"])
def test_what_is_no_url_may_be_a_password(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, text: str, how: str
) -> None:
    if how in ("option", "argument") and text == CANARY:
        return  # a word of the command line alone is taken for a file's name, and repeated
    words: tuple[tuple[str, ...], ...] = (("status",), ("doctor",))
    if how == "environment":
        monkeypatch.setenv("OUTLAST_URL", text)
    elif how == "file":
        (shop.folder / "url").write_text(text)
        monkeypatch.setenv("OUTLAST_URL_FILE", str(shop.folder / "url"))
    elif how == "option":
        words = (("status", "--url", text),)
    else:
        words = (("doctor", text),)
    for line in words:
        result = shop.run(*line)
        assert result.exit_code == 2
        assert "is not a store URL: use " in result.stderr
        assert clean(result.output + result.stderr), line


@pytest.mark.needs("redis")
def test_a_redis_password_without_its_colon_is_not_taken_for_a_name() -> None:
    from outlast.stores.redis.address import read

    assert read(f"redis://{CODED}@db.example/0").shown == "redis://***@db.example/0"
    assert read(f"redis://shop:{CODED}@db.example/0").shown == "redis://shop@db.example/0"
