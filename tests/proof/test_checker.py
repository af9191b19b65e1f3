"""The judge itself on trial: hand-made histories, each with one thing wrong, or nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof.checker import Report, check
from tests.proof.journal import Event, Journal, Kind, read

from outlast.job import Failure, Job, Status

if TYPE_CHECKING:
    from pathlib import Path

PRODUCER, WORKER, OTHER = 10, 20, 30


class Story:
    """Writes a history line by line, one second apart."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.jobs: dict[str, Job] = {}

    def tell(self, kind: Kind, id: str = "", pid: int = WORKER, **fields: Any) -> Story:
        self.events.append(Event(kind, float(len(self.events)), pid, id, **fields))
        return self

    def added(self, id: str = "a", lane: str = "") -> Story:
        return self.tell("invoke", id, PRODUCER, lane=lane).tell("ok", id, PRODUCER, lane=lane)

    def ran(self, id: str = "a", pid: int = WORKER, attempt: int = 1, note: str = "done") -> Story:
        self.tell("start", id, pid, attempt=attempt).tell("end", id, pid, note=note)
        return self

    def settled(self, id: str = "a", pid: int = WORKER, note: str = "done") -> Story:
        return self.tell("settle", id, pid, note=note).tell("settled", id, pid, note=note)

    def holds(self, id: str = "a", status: Status = Status.DONE, **fields: Any) -> Story:
        self.jobs[id] = Job(id=id, status=status, **fields)
        return self

    def judged(self, **options: Any) -> Report:
        return check(self.events, self.jobs, **options)


def broken(story: Story, **options: Any) -> dict[str, list[str]]:
    return story.judged(**options).broken


def test_a_history_without_faults_is_fine() -> None:
    story = Story().added().ran().settled().holds()
    report = story.judged()
    assert report.broken == {}
    assert (report.acknowledged, report.runs, report.ended, report.explained) == (1, 1, 1, 0)


def test_what_was_purged_may_be_gone_or_still_there() -> None:
    story = Story().added("a").ran("a").settled("a").added("b").ran("b").settled("b")
    assert broken(story.tell("purge", "a").tell("purge", "b").holds("b")) == {}


def test_acknowledged_and_gone_is_lost() -> None:
    assert broken(Story().added()) == {"lost": ["a"]}


def test_acknowledged_run_and_gone_is_lost_unless_the_store_forgets_what_ended() -> None:
    story = Story().added().ran().settled()
    assert broken(story) == {"lost": ["a"]}
    assert broken(story, forgets=True) == {}
    assert broken(Story().added().tell("start", "a"), forgets=True) == {"lost": ["a"]}


def test_in_doubt_may_be_there_or_not() -> None:
    unsure = Story().tell("invoke", "a", PRODUCER).tell("info", "a", PRODUCER)
    assert broken(unsure) == {}
    assert unsure.judged().recovered == 0
    unsure.ran().settled().holds()
    report = unsure.judged()
    assert (report.broken, report.uncertain, report.recovered) == ({}, 1, 1)


def test_an_add_cut_short_by_a_kill_is_in_doubt() -> None:
    story = Story().tell("invoke", "a", PRODUCER).tell("kill", target=PRODUCER)
    assert story.judged().uncertain == 1
    assert broken(story) == {}


def test_refused_and_yet_seen_is_invented() -> None:
    story = Story().tell("invoke", "a", PRODUCER).tell("fail", "a", PRODUCER)
    assert broken(story) == {}
    assert broken(story.ran().settled().holds()) == {"invented": ["a"]}


def test_never_sent_and_yet_seen_is_invented() -> None:
    assert broken(Story().holds()) == {"invented": ["a"], "unearned": ["a"]}
    assert broken(Story().ran()) == {"invented": ["a"]}


def test_refused_and_repeated_with_success_is_acknowledged() -> None:
    story = Story().tell("invoke", "a", PRODUCER).tell("fail", "a", PRODUCER).added()
    assert broken(story) == {"lost": ["a"]}


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING])
def test_not_ended_when_all_is_quiet_is_stuck(status: Status) -> None:
    assert broken(Story().added().holds(status=status)) == {"stuck": ["a"]}


def test_a_run_cut_off_by_a_kill_explains_the_next() -> None:
    story = Story().added().tell("start", "a", attempt=1).tell("kill", target=WORKER)
    report = story.ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds().judged()
    assert (report.broken, report.explained, report.recovery) == ({}, 1, [1.0])


def test_a_run_over_but_not_yet_settled_when_killed_is_explained() -> None:
    story = Story().added().ran().tell("kill", target=WORKER)
    assert broken(story.ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds()) == {}


def test_a_run_over_for_long_when_killed_should_have_been_settled() -> None:
    story = Story().added().ran().tell("kill", target=WORKER)
    story.ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds()
    assert broken(story, patience=0.5) == {"unexplained": ["a"]}


def test_a_second_run_without_a_cause_is_unexplained() -> None:
    story = Story().added().tell("start", "a", attempt=1)
    story.ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds()
    assert broken(story) == {"unexplained": ["a"]}


def test_the_kill_of_another_process_explains_nothing() -> None:
    story = Story().added().tell("start", "a", attempt=1).tell("kill", target=PRODUCER)
    story.ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds()
    assert broken(story) == {"unexplained": ["a"]}


def test_a_kill_before_the_run_explains_nothing() -> None:
    story = Story().tell("kill", target=WORKER).added().tell("start", "a", attempt=1)
    story.ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds()
    assert broken(story) == {"unexplained": ["a"]}


def test_the_kill_of_the_supervisor_explains_the_reruns_of_its_children() -> None:
    story = Story().tell("birth", target=99).added().tell("start", "a", attempt=1)
    story.tell("kill", target=99).ran(pid=OTHER, attempt=2).settled(pid=OTHER).holds()
    assert broken(story) == {}


def test_a_retry_or_a_hand_back_asks_for_the_next_run() -> None:
    for verdict in ("retry", "give_back"):
        story = Story().added().ran(note="").settled(note=verdict)
        assert broken(story.ran(attempt=2).settled().holds()) == {}
    story = Story().added().ran(note="error").ran(attempt=2).holds()
    assert broken(story) == {}


def test_a_run_that_was_stopped_needs_somebody_who_stopped_its_worker() -> None:
    story = Story().added().ran(note="stopped").ran(pid=OTHER, attempt=2).holds()
    assert broken(story) == {"unexplained": ["a"]}
    story = Story().added().tell("start", "a", attempt=1).tell("term", target=WORKER)
    story.tell("end", "a", note="stopped").ran(pid=OTHER, attempt=2).holds()
    assert broken(story) == {}


def test_a_zombie_is_excused_but_its_verdict_must_be_refused() -> None:
    def frozen() -> Story:
        story = Story().added().tell("start", "a", attempt=1).tell("stop", target=WORKER)
        return story.ran(pid=OTHER, attempt=2).settled(pid=OTHER)

    late = frozen().tell("settle", "a", note="done").tell("refused", "a", note="done")
    assert broken(late.holds()) == {}
    assert broken(frozen().settled().holds()) == {"doubled": ["a"]}


def test_a_verdict_accepted_after_the_claim_went_to_another_is_doubled() -> None:
    story = Story().added().tell("start", "a", attempt=1).tell("stop", target=WORKER)
    story.tell("start", "a", OTHER, attempt=2).settled().holds()
    assert broken(story) == {"doubled": ["a"]}


def test_a_verdict_on_a_claim_that_never_began_is_not_the_earlier_run_s() -> None:
    """A worker gives a run back, gets the job again, and hears of its cancel before it begins."""
    story = Story().added().tell("start", "a", attempt=1).tell("end", "a", note="snooze")
    story.settled(note="give_back").tell("start", "a", OTHER, attempt=2).tell("kill", target=OTHER)
    story.tell("cancel", "a", PRODUCER)
    for kind in ("settle", "settled"):
        story.tell(kind, "a", note="cancelled", attempt=3)
    assert broken(story.holds(status=Status.CANCELLED)) == {}


def test_settled_and_run_again_is_undone_even_after_a_kill() -> None:
    story = Story().added().ran().settled().tell("kill", target=WORKER)
    story.ran(pid=OTHER, attempt=2).holds()
    assert broken(story) == {"undone": ["a"]}


def test_settled_and_queued_again_is_undone() -> None:
    story = Story().added().ran().settled().tell("cut").holds(status=Status.QUEUED)
    assert broken(story) == {"stuck": ["a"], "undone": ["a"]}


def test_revived_may_run_and_end_again() -> None:
    story = Story().added().ran(note="error").settled(note="dead").tell("revive", "a")
    assert broken(story.ran(attempt=2).settled().holds()) == {}


def made_by(job: Job) -> tuple[int, int] | None:
    if job.result is None:
        return None
    pid, attempt = job.result.split()
    return int(pid), int(attempt)


def test_the_result_must_be_the_last_runs() -> None:
    def twice(result: bytes) -> Story:
        story = Story().added().tell("start", "a", attempt=1).tell("stop", target=WORKER)
        story.ran(pid=OTHER, attempt=2).tell("end", "a", note="done")
        return story.holds(result=result, attempt=2)

    assert broken(twice(b"30 2"), author=made_by) == {}
    assert broken(twice(b"20 1"), author=made_by) == {"doubled": ["a"]}
    assert broken(twice(b"77 9"), author=made_by) == {"doubled": ["a"]}


def test_a_result_without_a_finished_run_is_invented() -> None:
    story = Story().added().tell("start", "a", attempt=1).holds(result=b"20 1", attempt=1)
    wrong = {"invented": ["a"], "unearned": ["a"]}
    assert broken(story, author=made_by) == wrong
    assert broken(Story().added().holds(), author=made_by) == wrong


def test_attempts_must_grow_unless_the_power_took_the_claim() -> None:
    def again(fault: Kind, **fields: Any) -> Story:
        story = Story().added().tell("start", "a", attempt=1).tell(fault, **fields)
        return story.ran(pid=OTHER, attempt=1).settled(pid=OTHER).holds()

    assert broken(again("kill", target=WORKER)) == {"miscounted": ["a"]}
    assert broken(again("cut")) == {}


def test_done_without_a_good_run_is_unearned() -> None:
    assert broken(Story().added().holds()) == {"unearned": ["a"]}
    for note in ("error", "stopped"):
        assert broken(Story().added().ran(note=note).holds()) == {"unearned": ["a"]}
    neighbour = Story().added("a").added("b").ran("a").settled("a").holds("a")
    assert broken(neighbour.tell("start", "b").holds("b")) == {"unearned": ["b"]}
    asked = Story().added().tell("start", "a").tell("settle", "a", note="done")
    assert broken(asked.holds()) == {}


def test_another_result_than_that_of_its_run_is_unearned() -> None:
    def told(job: Job) -> bytes:
        return job.id.encode()

    story = Story().added().ran()
    assert broken(story.holds(result=b"a"), result=told) == {}
    assert broken(story.holds(result=b"b"), result=told) == {"unearned": ["a"]}
    assert broken(story.holds(), result=told) == {"unearned": ["a"]}


def test_dead_without_a_failed_run_is_buried() -> None:
    story = Story().added().tell("start", "a").tell("kill", target=WORKER)
    assert broken(story.holds(status=Status.DEAD)) == {"buried": ["a"]}
    failed = Story().added().ran(note="error").holds(status=Status.DEAD)
    assert broken(failed) == {}


def test_cancelled_needs_somebody_who_asked() -> None:
    assert broken(Story().added().holds(status=Status.CANCELLED)) == {"unasked": ["a"]}
    asked = Story().added().tell("cancel", "a").holds(status=Status.CANCELLED)
    assert broken(asked) == {}
    expired = Failure(kind="expired")
    assert broken(Story().added().holds(status=Status.CANCELLED, failure=expired)) == {}


def test_a_lane_keeps_the_order_of_adds() -> None:
    def lane(first: str, second: str) -> Story:
        story = Story().added("a", lane="l").added("b", lane="l")
        return story.ran(first).ran(second).holds("a").holds("b")

    assert broken(lane("a", "b")) == {}
    assert broken(lane("b", "a")) == {"disordered": ["b"]}


def test_adds_of_one_moment_may_start_in_any_order() -> None:
    story = Story()
    for id in "ab":
        story.tell("invoke", id, PRODUCER, lane="l")
    for id in "ab":
        story.tell("ok", id, PRODUCER, lane="l")
    assert broken(story.ran("b").ran("a").holds("a").holds("b")) == {}


def test_two_jobs_of_a_lane_must_not_run_at_once() -> None:
    story = Story().added("a", lane="l").added("b", lane="l")
    story.tell("start", "a").tell("start", "b", OTHER).tell("end", "a", note="done")
    story.tell("end", "b", OTHER, note="done").holds("a").holds("b")
    assert broken(story) == {"disordered": ["b"]}


def test_a_kill_before_it_could_note_the_answer() -> None:
    """The job was given back, and taken by another, before the first could note that."""
    story = Story().added().tell("start", "a", attempt=1).tell("end", "a", note="stopped")
    story.tell("settle", "a", note="give_back").ran(pid=OTHER, attempt=2).holds()
    story.tell("kill", target=WORKER)
    assert broken(story) == {}


def test_recovery_is_measured_from_the_last_fault_that_hit() -> None:
    story = Story().added().tell("start", "a", attempt=1).tell("kill", target=WORKER)
    story.tell("calm").tell("calm").ran(pid=OTHER, attempt=2).holds()
    report = story.judged()
    assert (report.worst_recovery, report.recovery_at(0.99)) == (3.0, 3.0)
    assert Story().judged().recovery_at(0.99) == 0.0


def test_the_story_names_what_broke_and_every_fault() -> None:
    story = Story().added().added("b").ran("b").holds("b").tell("kill", target=WORKER)
    report = story.judged()
    told = report.story(story.events)
    assert "lost: 1" in told
    assert "invoke id=a" in told
    assert f"kill target={WORKER}" in told
    assert "id=b" not in told
    assert "lost=1" in report.summary()
    assert "all promises hold" in Story().judged().summary()


def test_a_journal_reads_back_what_was_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("invoke", "a", lane="l")
    journal.write("start", "a", attempt=2, token="t")
    journal.close()
    first, second = read(tmp_path)
    assert (first.kind, first.id, first.lane, first.pid) == ("invoke", "a", "l", os.getpid())
    assert (second.kind, second.attempt, second.token) == ("start", 2, "t")
    assert first.at <= second.at


def test_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("invoke", "a")
    journal.close()
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"kind":"ok","at":1.0,"pi')
    assert [event.kind for event in read(tmp_path)] == ["invoke"]


def test_a_forked_child_writes_to_a_file_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("invoke", "a")
    child = os.fork()
    if child == 0:
        journal.write("ok", "a")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    journal.write("invoke", "b")
    journal.close()
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert sorted((event.kind, event.id) for event in read(tmp_path)) == [
        ("invoke", "a"),
        ("invoke", "b"),
        ("ok", "a"),
    ]
