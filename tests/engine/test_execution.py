"""What a run's end becomes: one test for each row of the table at the top of execution.py."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from outlast import Cancel, Retry, RetryPolicy, Snooze, TaskError, current
from outlast.failing import MAX_MESSAGE, MAX_TRACEBACK
from outlast.job import Claim, Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.engine.rig import Rig

    from outlast.job import Verdict

pytestmark = pytest.mark.usefixtures("rig")


def claim_of(task: str, payload: bytes = b"{}", **fields: Any) -> Claim:
    return Claim(Job(id="job-1", task=task, payload=payload, **fields), b"receipt")


def raising(rig: Rig, error: Callable[[], BaseException], **options: Any) -> str:
    """A task that raises; its name."""

    @rig.app.task(name="raising", **options)
    async def fails() -> None:
        raise error()

    return fails.name


async def forever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("forever is over")


async def verdict_on(rig: Rig, claim: Claim) -> Verdict:
    verdict = await rig.run(claim)
    assert verdict is not None
    return verdict


async def test_what_it_returns_is_the_result(rig: Rig) -> None:
    @rig.app.task(name="double")
    async def double(n: int, *, by: int = 2) -> int:
        return n * by

    verdict = await verdict_on(rig, claim_of("double", b'{"n":21}'))
    assert (verdict.kind, verdict.result, verdict.started) == ("done", b"42", True)


@pytest.mark.parametrize(
    ("fails", "attempts", "then"),
    [(False, 1, ("follows",)), (True, 1, ("buries",)), (True, 2, ())],
)
async def test_jobs_that_follow_are_part_of_the_end(
    rig: Rig, fails: bool, attempts: int, then: tuple[str, ...]
) -> None:
    @rig.app.task(name="led", retry=attempts)
    async def led() -> None:
        current().then = (Job(id="follows"),)
        current().then_dead = (Job(id="buries"),)
        if fails:
            raise ValueError

    verdict = await verdict_on(rig, claim_of("led", max_attempts=attempts))
    assert tuple(job.id for job in verdict.then) == then


async def test_a_result_that_cannot_be_stored_buries_the_job(rig: Rig) -> None:
    @rig.app.task(name="odd", retry=5)
    async def odd() -> Any:
        return object()

    verdict = await verdict_on(rig, claim_of("odd", max_attempts=5))
    assert verdict.kind == "dead"
    assert verdict.failure is not None
    assert "the task returned, but its result can't be stored" in verdict.failure.message


async def test_a_payload_that_does_not_fit_buries_the_job_before_it_starts(rig: Rig) -> None:
    @rig.app.task(name="picky", retry=5)
    async def picky(n: int) -> None:
        raise AssertionError("never entered")

    for payload in (b'{"n":"x"}', b"\xff\x00", b"{}", b'{"m":1}'):
        verdict = await verdict_on(rig, claim_of("picky", payload, max_attempts=5))
        assert (verdict.kind, verdict.started) == ("dead", False)
        assert verdict.failure is not None
        assert verdict.failure.kind == "undecodable"


async def test_an_error_is_tried_again_while_attempts_are_left(rig: Rig) -> None:
    policy = RetryPolicy(attempts=3, delay=10, jitter=False)
    name = raising(rig, lambda: ValueError("no"), retry=policy)
    kinds = []
    for failures in range(3):
        verdict = await verdict_on(rig, claim_of(name, failures=failures, max_attempts=3))
        kinds.append((verdict.kind, verdict.delay))
        assert verdict.failure is not None
        assert (verdict.failure.kind, verdict.failure.type) == ("error", "ValueError")
    assert kinds == [("retry", 10.0), ("retry", 20.0), ("dead", 0.0)]


async def test_the_policy_says_which_errors_are_tried_again(rig: Rig) -> None:
    policy = RetryPolicy(attempts=9, on=(OSError,), never=(FileNotFoundError,))
    errors: list[BaseException] = [OSError(), FileNotFoundError(), ValueError(), TimeoutError()]
    name = raising(rig, lambda: errors[0], retry=policy)
    kinds = []
    while errors:
        kinds.append((await verdict_on(rig, claim_of(name, max_attempts=9))).kind)
        errors.pop(0)
    assert kinds == ["retry", "dead", "dead", "retry"]


async def test_the_total_time_counts_from_the_first_start(rig: Rig) -> None:
    policy = RetryPolicy(attempts=99, total=100.0)
    name = raising(rig, lambda: ValueError("no"), retry=policy)
    # It waited a day before it was first started; that is not held against it.
    fields: dict[str, Any] = {"created_at": 0.0, "max_attempts": 99}
    first = await verdict_on(rig, claim_of(name, started_at=86400.0, **fields))
    assert first.kind == "retry"
    assert first.failure is not None
    fields |= {"failure": first.failure, "failures": 1}
    assert (await verdict_on(rig, claim_of(name, started_at=86499.0, **fields))).kind == "retry"
    assert (await verdict_on(rig, claim_of(name, started_at=86500.0, **fields))).kind == "dead"


async def test_the_total_time_counts_the_last_run_as_well(rig: Rig) -> None:
    def late() -> ValueError:
        rig.clock.advance(50)
        return ValueError("no")

    name = raising(rig, late, retry=RetryPolicy(attempts=99, total=100.0))
    first = await verdict_on(rig, claim_of(name, started_at=86400.0, max_attempts=99))
    assert first.kind == "retry"
    fields: dict[str, Any] = {"failure": first.failure, "failures": 1, "max_attempts": 99}
    assert (await verdict_on(rig, claim_of(name, started_at=86440.0, **fields))).kind == "retry"
    assert (await verdict_on(rig, claim_of(name, started_at=86455.0, **fields))).kind == "dead"


@pytest.mark.parametrize("delay", [7, 7.0, timedelta(seconds=7)])
async def test_retry_sets_its_own_delay(rig: Rig, delay: Any) -> None:
    name = raising(
        rig, lambda: Retry(delay, "later"), retry=RetryPolicy(attempts=2, on=(KeyError,))
    )
    verdict = await verdict_on(rig, claim_of(name, max_attempts=2))
    assert (verdict.kind, verdict.delay) == ("retry", 7.0)
    assert verdict.failure is not None
    assert verdict.failure.message == "later"
    spent = await verdict_on(rig, claim_of(name, failures=1, max_attempts=2))
    assert spent.kind == "dead"


async def test_retry_without_delay_leaves_it_to_the_policy(rig: Rig) -> None:
    name = raising(rig, Retry, retry=RetryPolicy(attempts=2, delay=30, jitter=False))
    verdict = await verdict_on(rig, claim_of(name, max_attempts=2))
    assert (verdict.kind, verdict.delay) == ("retry", 30.0)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf")])
async def test_a_senseless_delay_is_a_failure(rig: Rig, delay: float) -> None:
    name = raising(rig, lambda: Snooze(delay))
    verdict = await verdict_on(rig, claim_of(name))
    assert verdict.kind == "dead"
    assert verdict.failure is not None
    assert verdict.failure.type == "ValueError"


async def test_snooze_costs_nothing(rig: Rig) -> None:
    name = raising(rig, lambda: Snooze(60))
    verdict = await verdict_on(rig, claim_of(name))
    assert (verdict.kind, verdict.delay, verdict.failure) == ("give_back", 60.0, None)


async def test_cancel_gives_the_job_up(rig: Rig) -> None:
    name = raising(rig, lambda: Cancel("not wanted"))
    verdict = await verdict_on(rig, claim_of(name))
    assert verdict.kind == "cancelled"
    assert verdict.failure is not None
    assert (verdict.failure.kind, verdict.failure.message) == ("cancelled", "not wanted")


async def test_a_coroutine_is_cancelled_when_its_time_is_up(rig: Rig) -> None:
    seen: list[str] = []

    @rig.app.task(name="slow", retry=2)
    async def slow() -> None:
        try:
            await forever()
        finally:
            seen.append("cleaned up")

    verdict = await verdict_on(rig, claim_of("slow", timeout=0.01, max_attempts=2))
    assert verdict.kind == "retry"
    assert verdict.failure is not None
    assert (verdict.failure.kind, verdict.failure.type) == ("timeout", "TimeoutError")
    assert "0.01 s" in verdict.failure.message
    assert "in slow" in verdict.failure.traceback
    assert seen == ["cleaned up"]


async def test_a_timeout_of_the_tasks_own_is_an_error(rig: Rig) -> None:
    @rig.app.task(name="impatient")
    async def impatient() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)

    failure = await rig.failure(claim_of("impatient", timeout=60.0))
    assert failure.kind == "error"


async def test_what_a_timed_out_run_raises_in_the_end_stays_a_timeout(rig: Rig) -> None:
    @rig.app.task(name="rude")
    async def rude() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise RuntimeError("how dare you") from None

    failure = await rig.failure(claim_of("rude", timeout=0.001))
    assert failure.kind == "timeout"
    assert "how dare you" in failure.traceback


async def test_a_run_that_returns_though_its_time_was_up_is_done(rig: Rig) -> None:
    @rig.app.task(name="stubborn")
    async def stubborn() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            return "made it"

    verdict = await verdict_on(rig, claim_of("stubborn", timeout=0.001))
    assert (verdict.kind, verdict.result) == ("done", b'"made it"')


class Shy(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Nested(Exception):
    pass


def chain(depth: int) -> BaseException:
    error: BaseException = Nested("first")
    for number in range(depth):
        following = Nested(str(number))
        following.__context__ = error
        error = following
    return error


def group(depth: int) -> BaseException:
    error: BaseException = ValueError("leaf")
    for number in range(depth):
        error = BaseExceptionGroup(f"level {number}", [error, KeyError(number)])
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (lambda: SystemExit(3), "SystemExit"),
        (lambda: KeyboardInterrupt(), "KeyboardInterrupt"),
        (lambda: GeneratorExit(), "GeneratorExit"),
        (lambda: StopIteration(1), "RuntimeError"),
        (lambda: StopAsyncIteration(1), "StopAsyncIteration"),
        (lambda: MemoryError(), "MemoryError"),
        (lambda: Shy(), "tests.engine.test_execution.Shy"),
        (lambda: chain(2000), "tests.engine.test_execution.Nested"),
        (lambda: group(60), "ExceptionGroup"),
        (lambda: ValueError("\ud800 half, \0 nul"), "ValueError"),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError"),
        (lambda: ValueError("x" * 10_000_000), "ValueError"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_whatever_is_raised_is_recorded(
    rig: Rig, error: Callable[[], BaseException], kind: str
) -> None:
    failure = await rig.failure(claim_of(raising(rig, error)))
    assert (failure.kind, failure.type) == ("error", kind)
    assert len(failure.message) <= MAX_MESSAGE
    assert len(failure.traceback) <= MAX_TRACEBACK
    for text in (failure.message, failure.traceback, failure.type):
        assert "\0" not in text
        text.encode()


async def test_a_recursion_error_is_recorded(rig: Rig) -> None:
    @rig.app.task(name="deep")
    async def deep() -> None:
        def down() -> NoReturn:
            down()

        down()

    failure = await rig.failure(claim_of("deep"))
    assert failure.type == "RecursionError"
    assert "down()" in failure.traceback


async def test_the_traceback_begins_with_the_task_and_keeps_its_end(rig: Rig) -> None:
    failure = await rig.failure(claim_of(raising(rig, lambda: ValueError("boom"))))
    assert "outlast/execution.py" not in failure.traceback
    assert failure.traceback.rstrip().endswith("ValueError: boom")


async def test_a_cancelled_error_of_the_tasks_own_is_a_failure(rig: Rig) -> None:
    @rig.app.task(name="odd", retry=2)
    async def odd() -> None:
        inner = asyncio.get_running_loop().create_future()
        inner.cancel()
        await inner

    verdict = await verdict_on(rig, claim_of("odd", max_attempts=2))
    assert verdict.kind == "retry"
    assert verdict.failure is not None
    assert "nobody had asked to cancel" in verdict.failure.message


@pytest.mark.parametrize(
    ("why", "kind"),
    [("cancelled", "cancelled"), ("shutdown", "give_back"), ("lost", None), ("abandoned", None)],
)
@pytest.mark.parametrize("ending", ["passes it on", "raises", "steers"])
async def test_an_interrupted_run(rig: Rig, why: Any, kind: str | None, ending: str) -> None:
    entered = asyncio.Event()

    @rig.app.task(name="waits")
    async def waits() -> None:
        entered.set()
        try:
            await forever()
        except asyncio.CancelledError:
            if ending == "passes it on":
                raise
            raise (Retry(1) if ending == "steers" else OSError("cut off")) from None

    run, running = rig.start(claim_of("waits", max_attempts=2))
    await entered.wait()
    assert run.interrupt(why)
    assert not run.interrupt(why), "a second time is no news"
    running.cancel()
    verdict = await running
    if ending == "steers" and why == "shutdown":
        kind = "retry"  # it had something to say of its own
    assert (verdict.kind if verdict else None) == kind
    assert run.cancelled
    assert run.lease_lost == (why == "lost")


async def test_an_interrupted_run_that_returns_is_done_unless_it_is_lost(rig: Rig) -> None:
    entered = asyncio.Event()

    @rig.app.task(name="finishes")
    async def finishes() -> int:
        entered.set()
        try:
            await forever()
        except asyncio.CancelledError:
            return 7

    for why, kind in (("cancelled", "done"), ("shutdown", "done"), ("lost", None)):
        entered.clear()
        run, running = rig.start(claim_of("finishes"))
        await entered.wait()
        run.interrupt(why)  # type: ignore[arg-type]  # one of the names
        running.cancel()
        verdict = await running
        assert (verdict.kind if verdict else None) == kind


@pytest.mark.parametrize(
    ("why", "kind"),
    [("cancelled", "cancelled"), ("shutdown", "give_back"), ("lost", None), ("abandoned", None)],
)
async def test_interrupted_before_it_began_it_never_starts(
    rig: Rig, why: Any, kind: str | None
) -> None:
    @rig.app.task(name="never")
    async def never() -> None:
        raise AssertionError("never entered")

    run, running = rig.start(claim_of("never"))
    run.interrupt(why)
    verdict = await running
    assert (verdict.kind if verdict else None) == kind
    assert verdict is None or not verdict.started


async def test_current_shows_the_job(rig: Rig) -> None:
    @rig.app.task(name="looks")
    async def looks() -> None:
        run = current()
        assert (run.id, run.task, run.queue, run.attempt) == ("job-1", "looks", "post", 3)
        assert run.headers == {"trace": "abc"}
        assert run.idempotency_key == "job-1"
        assert (run.lease_lost, run.cancelled) == (False, False)
        run.progress(0.5, "half")
        run.progress()
        for wrong in (-0.1, 1.1, float("nan")):
            with pytest.raises(ValueError, match="fraction"):
                run.progress(wrong)
        await asyncio.create_task(in_a_task_of_its_own())

    async def in_a_task_of_its_own() -> None:
        assert current().id == "job-1"

    claim = claim_of("looks", queue="post", attempt=3, headers={"trace": "abc"})
    assert (await verdict_on(rig, claim)).kind == "done"
    assert [(note.value, note.text) for note in rig.notes] == [(0.5, "half"), (None, "")]
    with pytest.raises(TaskError, match="only while a worker runs"):
        current()


async def test_the_idempotency_key_is_the_jobs_key(rig: Rig) -> None:
    @rig.app.task(name="keyed")
    async def keyed() -> str:
        return current().idempotency_key

    assert (await verdict_on(rig, claim_of("keyed", key="order-7"))).result == b'"order-7"'


async def test_a_plain_function_without_threads_runs_in_place(rig: Rig) -> None:
    @rig.app.task(name="plain")
    def plain(n: int) -> str:
        return current().id * n

    assert (await verdict_on(rig, claim_of("plain", b'{"n":1}'))).result == b'"job-1"'
