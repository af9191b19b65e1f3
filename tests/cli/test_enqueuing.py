"""`outlast enqueue`: arguments as JSON, read as the task's own types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

    from outlast.job import Job


def stored(shop: Shop, *args: str) -> Job:
    result = shop.run("enqueue", *args)
    assert result.exit_code == 0, result.output
    job = shop.get(result.stdout.strip())
    assert job is not None
    return job


@pytest.mark.parametrize("text", ['{"order": 42, "to": "a@b"}', '[42, "a@b"]'])
def test_arguments_by_name_or_in_order(shop: Shop, text: str) -> None:
    job = stored(shop, "shop:send_receipt", text)
    assert json.loads(job.payload) == {"order": 42, "to": "a@b"}
    assert (job.task, job.queue, job.max_attempts, job.timeout) == (
        "shop.send_receipt", "default", 5, 30,
    )  # fmt: skip


def test_the_rest_of_the_arguments_goes_where_it_belongs(shop: Shop) -> None:
    assert json.loads(stored(shop, "shop:add_up", "[1, 2, 3]").payload) == {"*": [1, 2, 3]}
    assert stored(shop, "shop:sum").queue == "maths"  # by the task's own name, no arguments


def test_values_are_read_as_the_types_of_the_signature(shop: Shop) -> None:
    job = stored(shop, "shop:send_receipt", '{"order": 1, "when": "2026-01-02T03:04:05Z"}')
    assert b"2026-01-02T03:04:05" in job.payload
    result = shop.run("enqueue", "shop:send_receipt", '{"order": 1, "when": "soon"}')
    assert result.exit_code == 2
    assert "when" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"order": "x"}', "order"),
        ("{}", "order"),
        ('{"order": 1, "too": 2}', "too"),
        ('[1, "a", null, 4]', "takes 3: order, to, when"),
        ("{", "not JSON"),
        ("42", "array"),
        ('{"order": NaN}', "NaN"),
        ('{"order": 1, "order": 2}', "twice"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_stored(shop: Shop, text: str, said: str) -> None:
    result = shop.run("enqueue", "shop:send_receipt", text)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (shop.folder / "shop.db").exists()


def test_options_of_the_call(shop: Shop) -> None:
    job = stored(
        shop, "shop:send_receipt", "[1]",
        "--delay", "1h", "--queue", "slow", "--key", "k", "--priority", "7",
    )  # fmt: skip
    assert job.created_at is not None
    assert job.run_at == pytest.approx(job.created_at + 3600)
    assert (job.queue, job.key, job.priority) == ("slow", "k", 7)


def test_the_same_key_answers_with_the_same_job(shop: Shop) -> None:
    first = shop.ok("enqueue", "shop:send_receipt", "[1]", "--key", "k")
    again = shop.run("enqueue", "shop:send_receipt", "[1]", "--key", "k")
    assert (again.exit_code, again.stdout) == (0, first)
    assert "nothing was stored" in again.stderr
    other = shop.run("enqueue", "shop:send_receipt", "[2]", "--key", "k")
    assert other.exit_code == 1
    assert other.stdout == ""


def test_another_store_than_the_apps_own(shop: Shop) -> None:
    missing = shop.run("enqueue", "shop:sum", "--url", "sqlite:///other.db")
    assert missing.exit_code == 4
    assert not (shop.folder / "other.db").exists()
    shop.ok("enqueue", "shop:sum", "--url", "sqlite:///other.db", "--create")
    assert (shop.folder / "other.db").exists()
    assert not (shop.folder / "shop.db").exists()


def test_arguments_without_a_bottom_are_refused(shop: Shop) -> None:
    result = shop.run("enqueue", "shop:send_receipt", "[" * 100_000)
    assert result.exit_code == 2
    assert "nested too deep" in result.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1e999]", "1e999 is too large a number"),
        ('{"order": -1e400}', "-1e400 is too large a number"),
        ('{"order": 1, "to": "\\ud800"}', "half a character"),
        ('["' + "x" * 9000, "xxx..."),
    ],
)
def test_what_no_store_could_keep_is_named(shop: Shop, text: str, said: str) -> None:
    result = shop.run("enqueue", "shop:send_receipt", text)
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr) < 500
