"""When a failed run is tried again: how often, how late, for which exceptions."""

from __future__ import annotations

import asyncio
import dataclasses
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast import ConfigurationError, RetryPolicy
from outlast.chance import SeededChance, SystemChance


class Always:
    """A chance that draws the number it is told to."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number

    def uuid7(self) -> str:
        raise AssertionError("no id is needed")

    def token(self) -> bytes:
        raise AssertionError("no receipt is needed")


HALF = Always(0.5)


class TestDelay:
    def test_grows_by_the_factor_up_to_the_cap(self) -> None:
        policy = RetryPolicy(delay=2, factor=3, cap=100, jitter=False)
        assert [policy.next_delay(n, HALF) for n in range(1, 7)] == [2, 6, 18, 54, 100, 100]

    def test_jitter_takes_a_random_part_of_all_of_it(self) -> None:
        policy = RetryPolicy(delay=2, factor=3, cap=100)
        assert [policy.next_delay(n, HALF) for n in range(1, 7)] == [1, 3, 9, 27, 50, 50]
        assert policy.next_delay(3, Always(0.0)) == 0

    def test_jitter_spreads_over_the_whole_range(self) -> None:
        chance, policy = SeededChance(1), RetryPolicy(delay=100)
        delays = [policy.next_delay(1, chance) for _ in range(1000)]
        assert min(delays) < 2
        assert max(delays) > 98
        assert 45 < sum(delays) / 1000 < 55

    def test_a_factor_of_one_is_a_steady_pause(self) -> None:
        policy = RetryPolicy(delay=5, factor=1, jitter=False)
        assert {policy.next_delay(n, HALF) for n in (1, 2, 1000, 10**9)} == {5}

    @pytest.mark.parametrize("failures", [1, 2, 10_000, 10**9])
    def test_no_delay_stays_none(self, failures: int) -> None:
        assert RetryPolicy(delay=0, jitter=False).next_delay(failures, HALF) == 0

    @pytest.mark.parametrize("factor", [2, 2.0, 1e300, 10**300])
    @pytest.mark.parametrize("delay", [1, 1e300])
    def test_many_failures_are_no_overflow(self, factor: float, delay: float) -> None:
        policy = RetryPolicy(delay=delay, factor=factor, cap=60, jitter=False)
        assert policy.next_delay(10_000, HALF) == 60
        assert policy.next_delay(10**9, HALF) == 60

    @given(
        delay=st.floats(0, 1e9), factor=st.floats(1, 1e9), cap=st.floats(0, 1e9),
        failures=st.integers(0, 10**6), jitter=st.booleans(),
    )  # fmt: skip
    def test_never_below_zero_nor_above_the_cap(
        self, delay: float, factor: float, cap: float, failures: int, jitter: bool
    ) -> None:
        policy = RetryPolicy(delay=delay, factor=factor, cap=cap, jitter=jitter)
        pause = policy.next_delay(failures, SystemChance())
        assert isfinite(pause)
        assert 0 <= pause <= cap
        assert type(pause) is float


class TestWhichExceptions:
    def test_any_exception_by_default_but_no_steering_one(self) -> None:
        policy = RetryPolicy()
        assert policy.retries(ValueError())
        for error in (KeyboardInterrupt(), SystemExit(), asyncio.CancelledError()):
            assert not policy.retries(error)

    def test_only_those_named_and_their_subclasses(self) -> None:
        policy = RetryPolicy(on=(OSError, TimeoutError))
        assert policy.retries(ConnectionResetError())
        assert not policy.retries(ValueError())

    def test_never_wins(self) -> None:
        policy = RetryPolicy(on=(OSError,), never=(FileNotFoundError,))
        assert policy.retries(OSError())
        assert not policy.retries(FileNotFoundError())

    def test_one_class_needs_no_tuple(self) -> None:
        policy = RetryPolicy(on=OSError, never=[FileNotFoundError])  # type: ignore[arg-type]
        assert (policy.on, policy.never) == ((OSError,), (FileNotFoundError,))

    def test_none_at_all(self) -> None:
        assert not RetryPolicy(on=()).retries(ValueError())


class TestTotal:
    def test_no_limit_by_default(self) -> None:
        assert not RetryPolicy().out_of_time(1e12)

    def test_from_then_on_it_is_too_late(self) -> None:
        policy = RetryPolicy(total=60)
        assert not policy.out_of_time(59.9)
        assert policy.out_of_time(60)
        assert RetryPolicy(total=0).out_of_time(0)


class TestWhatMakesNoSense:
    @pytest.mark.parametrize(
        "wrong",
        [
            *({"attempts": value} for value in (0, -1, 1.0, True, None, "3")),
            *(
                {"delay": value}
                for value in (-1, float("nan"), float("inf"), 10**400, None, "1", True)
            ),
            *({"factor": value} for value in (0.9, 0, -2, float("nan"), float("inf"), "2")),
            *({"cap": value} for value in (-1, float("nan"), float("inf"), None)),
            *({"total": value} for value in (-1, float("nan"), float("inf"), "1")),
            *({"jitter": value} for value in (1, None, 0.5)),
            *({"on": value} for value in ((int,), ("ValueError",), (ValueError(),), 5, None, "x")),
            *({"never": value} for value in ((int,), int, 5, None)),
        ],
        ids=repr,
    )
    def test_is_said_with_what_was_found(self, wrong: dict[str, Any]) -> None:
        ((name, value),) = wrong.items()
        found = value[0] if isinstance(value, tuple) else value
        with pytest.raises(ConfigurationError, match=f"^{name} must ") as caught:
            RetryPolicy(**wrong)
        assert repr(found) in str(caught.value)

    def test_a_policy_does_not_change(self) -> None:
        policy = RetryPolicy()
        with pytest.raises(dataclasses.FrozenInstanceError):
            policy.attempts = 5  # type: ignore[misc]
        assert policy == RetryPolicy()
        assert hash(policy) == hash(RetryPolicy())
