"""What a task and a call can be told, what it makes of the job, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from outlast import ConfigurationError, DecodeError, Job, Outlast, RetryPolicy
from outlast.job import DAY
from outlast.options import POLICY

app = Outlast("memory://")
POLICY_OF_SHIP = RetryPolicy(attempts=3, delay=5, on=(OSError,), never=(PermissionError,))


@app.task(name="plain")
async def plain(n: int = 0) -> int:
    return n


@app.task(name="ship", queue="slow", retry=POLICY_OF_SHIP, timeout=30, headers={"by": "us"})
async def ship(n: int = 0) -> int:
    return n


NOON = datetime(2031, 5, 6, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"delay": 60}, {"delay": 60.0}),
        ({"delay": 0.5}, {"delay": 0.5}),
        ({"delay": timedelta(minutes=2)}, {"delay": 120.0}),
        ({"delay": 0}, {"delay": None}),
        ({"delay": None}, {"delay": None}),
        ({"at": NOON}, {"run_at": NOON.timestamp()}),
        (
            {"at": datetime(2031, 5, 6, 14, tzinfo=timezone(timedelta(hours=2)))},
            {"run_at": NOON.timestamp()},
        ),
        ({"at": datetime(1999, 1, 1, tzinfo=UTC)}, {"run_at": 915148800.0}),
        ({"at": None}, {"run_at": None}),
        ({"expires": 60}, {"ttl": 60.0}),
        ({"expires": timedelta(hours=1)}, {"ttl": 3600.0}),
        ({"expires": NOON}, {"expires_at": NOON.timestamp()}),
        ({"expires": None}, {"ttl": None, "expires_at": None}),
        ({"delay": 5, "expires": 6}, {"delay": 5.0, "ttl": 6.0}),
        ({"priority": 100}, {"priority": 100}),
        ({"priority": -100}, {"priority": -100}),
        ({"queue": "mail.out"}, {"queue": "mail.out"}),
        ({"key": "receipt 42 é"}, {"key": "receipt 42 é"}),
        ({"key": None}, {"key": None}),
        ({"lane": "customer-7"}, {"lane": "customer-7"}),
        ({"timeout": 2}, {"timeout": 2.0}),
        ({"timeout": timedelta(seconds=2)}, {"timeout": 2.0}),
        ({"timeout": None}, {"timeout": None}),
        ({"retry": 7}, {"max_attempts": 7}),
        ({"keep": 7200}, {"keep": 7200.0}),
        ({"keep": timedelta(days=30)}, {"keep": 30 * DAY}),
        ({"keep": None}, {"keep": None}),
        ({"headers": {"trace": "1"}}, {"headers": {"trace": "1"}}),
    ],
)
def test_what_a_call_is_told_is_in_the_job(options: Any, fields: dict[str, Any]) -> None:
    before, job = plain.call().job, plain.using(**options).call().job
    for name in Job.__struct_fields__:
        if name not in ("id", "digest"):
            assert getattr(job, name) == fields.get(name, getattr(before, name)), name


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"delay": -1}, "delay=-1"),
        ({"delay": timedelta(seconds=-1)}, "delay=-1"),
        ({"delay": float("nan")}, "delay=nan"),
        ({"delay": float("inf")}, "delay=inf"),
        ({"delay": 1e300}, "delay=1e.300"),
        ({"delay": "60"}, "delay='60'"),
        ({"delay": True}, "delay=True"),
        ({"at": datetime(2031, 5, 6, 12)}, "at=.*no time zone"),
        ({"at": 1_900_000_000}, "at=1900000000.*time zone"),
        ({"at": NOON, "delay": 1}, "delay=.*at="),
        ({"expires": 0}, "expires=0"),
        ({"expires": -5}, "expires=-5"),
        ({"expires": float("nan")}, "expires=nan"),
        ({"expires": datetime(2031, 5, 6, 12)}, "expires=.*no time zone"),
        ({"expires": 5, "delay": 5}, "expires=.*never"),
        ({"expires": NOON, "at": NOON}, "expires=.*never"),
        ({"priority": 101}, "priority 101"),
        ({"priority": -101}, "priority -101"),
        ({"priority": 1.0}, "priority 1.0"),
        ({"priority": True}, "priority True"),
        ({"priority": None}, "priority None"),
        ({"queue": ""}, "queue ''"),
        ({"queue": "a b"}, "queue 'a b'"),
        ({"queue": "q" * 129}, "queue 'qqq"),
        ({"queue": None}, "queue None"),
        ({"key": ""}, "key ''"),
        ({"key": "a\0b"}, "key .*NUL"),
        ({"key": "k" * 513}, "key 'kkk"),
        ({"key": "\ud83d"}, "key .*half a character"),
        ({"key": 42}, "key 42"),
        ({"lane": ""}, "lane ''"),
        ({"lane": 42}, "lane=42"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": -1}, "timeout=-1"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"retry": 0}, "retry=0"),
        ({"retry": 2.0}, "retry=2.0"),
        ({"retry": True}, "retry=True"),
        ({"retry": None}, "retry=None"),
        ({"keep": 0}, "keep=0.*3600"),
        ({"keep": 3599}, "keep=3599.*3600"),
        ({"keep": -1}, "keep=-1"),
        ({"headers": {"a b": "c"}}, "header 'a b'"),
        ({"headers": {"a": 1}}, "header 'a'"),
        ({"headers": {"a": "\0"}}, "header 'a'"),
        ({"headers": {"a": "\udc00"}}, "header 'a'"),
        ({"headers": {1: "a"}}, "header 1"),
        ({"headers": {POLICY: "[]"}}, "header 'outlast-retry'"),
        ({"headers": [1]}, r"headers=\[1\]"),
        ({"headers": "abc"}, "headers='abc'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: Any, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        plain.using(**options)


@pytest.mark.parametrize(
    "option",
    [
        "key",
        "queue",
        "lane",
        "delay",
        "at",
        "expires",
        "priority",
        "timeout",
        "retry",
        "headers",
        "on_repeat",
        "keep",
        "keep_key",
    ],
)
def test_a_refusal_repeats_no_endless_value(option: str) -> None:
    endless: Any = {option: "x" * 10_000}
    with pytest.raises(ConfigurationError) as refused:
        plain.using(**endless)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"queue": "a b"}, "queue 'a b'"),
        ({"name": 5}, "task 5"),
        ({"queue": ["a"]}, r"queue \['a'\]"),
        ({"name": "a b"}, "task 'a b'"),
        ({"name": ""}, "task ''"),
        ({"retry": 0}, "retry=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": "30"}, "timeout='30'"),
        ({"priority": 200}, "priority 200"),
        ({"keep": 60}, "keep=60"),
        ({"keep_key": -1}, "keep_key=-1"),
        ({"keep_key": float("inf")}, "keep_key=inf"),
        ({"max_crashes": 0}, "max_crashes 0"),
        ({"max_crashes": 1.5}, "max_crashes=1.5"),
        ({"lane": 7}, "lane=7"),
        ({"lane": ""}, "lane ''"),
        ({"headers": {"a": None}}, "header 'a'"),
    ],
)
def test_a_task_s_options_are_refused_where_it_is_made(options: Any, found: str) -> None:
    fresh = Outlast("memory://")
    with pytest.raises(ConfigurationError, match=found):

        @fresh.task(**options)
        async def tasked() -> None: ...

    assert fresh.tasks == {}


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="retries"):
        app.task(retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="prio"):
        plain.using(prio=3)  # type: ignore[call-arg]


def test_options_add_up_and_the_last_one_counts() -> None:
    job = plain.using(delay=60, priority=1).using(priority=2, key="k").call().job
    assert (job.delay, job.priority, job.key) == (60.0, 2, "k")
    assert plain.using(delay=60).using(at=NOON).call().job.delay is None
    assert plain.using(at=NOON).using(delay=60).call().job.run_at is None
    assert plain.using(expires=NOON).using(expires=60).call().job.expires_at is None
    assert ship.using(headers={"trace": "1"}).call().job.headers == {"by": "us", "trace": "1"}
    assert ship.using(headers={"by": "them"}).call().job.headers == {"by": "them"}


def test_using_leaves_the_task_as_it_was() -> None:
    before = ship.call().job
    ship.using(delay=60, key="k", queue="other", retry=9, headers={"a": "b"}, lane="l")
    after = ship.call().job
    assert (after.delay, after.key, after.queue, after.lane) == (None, None, "slow", None)
    assert (after.max_attempts, after.headers) == (before.max_attempts, before.headers)
    assert app.tasks["ship"] is ship


def test_none_takes_back_what_the_task_has() -> None:
    assert ship.using(timeout=None).call().job.timeout is None
    assert ship.using(key="k").using(key=None).call().job.key is None


class TestRetryOfOneCall:
    def test_without_one_it_is_the_task_s(self) -> None:
        assert ship.policy(ship.call().job) == POLICY_OF_SHIP

    def test_a_number_keeps_the_task_s_pauses(self) -> None:
        job = ship.using(retry=9).call().job
        assert job.max_attempts == 9
        assert ship.policy(job) == POLICY_OF_SHIP

    def test_a_policy_travels_with_the_job(self) -> None:
        mine = RetryPolicy(
            attempts=9, delay=0.5, factor=3, cap=60, jitter=False, total=600,
            on=(OSError,), never=(PermissionError,),
        )  # fmt: skip
        job = ship.using(retry=mine).call().job
        assert job.max_attempts == 9
        policy = ship.policy(job)
        assert (policy.delay, policy.factor, policy.cap) == (0.5, 3.0, 60.0)
        assert (policy.jitter, policy.total) == (False, 600.0)
        assert (policy.on, policy.never) == ((OSError,), (PermissionError,))

    def test_a_number_after_a_policy_forgets_it(self) -> None:
        mine = RetryPolicy(attempts=9, delay=0.5, on=(OSError,), never=(PermissionError,))
        job = ship.using(retry=mine).using(retry=2).call().job
        assert job.max_attempts == 2
        assert POLICY not in job.headers

    def test_headers_after_a_policy_keep_it(self) -> None:
        mine = RetryPolicy(attempts=9, delay=0.5, on=(OSError,), never=(PermissionError,))
        job = ship.using(retry=mine).using(headers={"trace": "1"}).call().job
        assert ship.policy(job).delay == 0.5
        assert job.headers["trace"] == "1"

    def test_classes_do_not_travel(self) -> None:
        with pytest.raises(ConfigurationError, match="on and never"):
            ship.using(retry=RetryPolicy(attempts=2))
        with pytest.raises(ConfigurationError, match="on and never"):
            plain.using(retry=RetryPolicy(attempts=2, never=(KeyError,)))

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "{}", "[1,2,3,true]", '["1",2,60,true,null]', "[-1,2,60,true,null]", "[1" * 99],
    )
    def test_one_that_was_tampered_with_is_an_error(self, text: str) -> None:
        with pytest.raises(DecodeError, match=POLICY) as caught:
            ship.policy(Job(id="1", task="ship", headers={POLICY: text}))
        assert caught.value.data == text.encode()
