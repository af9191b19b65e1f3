"""The judge: compares what the journals saw with what the store holds once everything is quiet.

Every run after the first needs a cause on record (a fault that hit the process of the run before,
or a verdict that asked for another run). What has none is a bug, however rarely it happens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from outlast.job import Job, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.proof.journal import Event

__all__ = ["Report", "Run", "check"]

ENDINGS = frozenset({"done", "dead", "cancelled"})
AGAIN = frozenset({"retry", "give_back"})
PLANNED = frozenset({"error", "snooze"})
FAULTS = frozenset({"kill", "stop", "term"})
SKEW = 1.0
"""Seconds between a fault's line in the journal and the fault itself, generously."""


@dataclass(slots=True)
class Run:
    """One start of one job, and what became of it."""

    id: str
    pid: int
    attempt: int
    began: float
    ended: float | None = None
    note: str = ""
    asked: str = ""
    """The kind of the verdict handed in, answered or not."""
    verdict: str = ""
    """The kind of the verdict that was accepted."""
    judged: float = 0.0


@dataclass(slots=True)
class Report:
    """What was found. The fields up to ``unearned`` name the ids (or runs) that break a promise."""

    lost: list[str] = field(default_factory=list)
    """Acknowledged, and neither stored nor ended."""
    invented: list[str] = field(default_factory=list)
    """Seen, but never sent, or refused when sent."""
    stuck: list[str] = field(default_factory=list)
    """Stored, and still not ended when all was quiet."""
    undone: list[str] = field(default_factory=list)
    """Ended by an accepted verdict, yet queued or run again."""
    doubled: list[str] = field(default_factory=list)
    """More than one completion was accepted, or one from a run whose claim was over."""
    unexplained: list[str] = field(default_factory=list)
    """Run again without any cause on record."""
    miscounted: list[str] = field(default_factory=list)
    """A later run was given an attempt number that is not higher."""
    disordered: list[str] = field(default_factory=list)
    """Jobs of one lane started in another order than they were added, or ran at once."""
    buried: list[str] = field(default_factory=list)
    """Dead, though no run of it failed."""
    unasked: list[str] = field(default_factory=list)
    """Cancelled, though nobody asked for it."""
    unearned: list[str] = field(default_factory=list)
    """Done, though no run of it came to a good end, or with another result than that of its run."""
    acknowledged: int = 0
    uncertain: int = 0
    recovered: int = 0
    """Of the uncertain ones, how many turned out to be there."""
    runs: int = 0
    ended: int = 0
    explained: int = 0
    """Runs that repeat one cut off by a fault."""
    faults: int = 0
    recoveries: list[tuple[float, str]] = field(default_factory=list)
    """Seconds from each fault to the next start of each job that it interrupted, and which."""

    @property
    def broken(self) -> dict[str, list[str]]:
        """The promises that do not hold, with what breaks them."""
        names = (
            "lost", "invented", "stuck", "undone", "doubled", "unexplained", "miscounted",
            "disordered", "buried", "unasked", "unearned",
        )  # fmt: skip
        return {name: found for name in names if (found := getattr(self, name))}

    @property
    def recovery(self) -> list[float]:
        return sorted(seconds for seconds, _ in self.recoveries)

    @property
    def worst_recovery(self) -> float:
        return max(self.recovery, default=0.0)

    def recovery_at(self, share: float) -> float:
        """The recovery time that this share of the interrupted runs did not exceed."""
        ranked = self.recovery
        if not ranked:
            return 0.0
        return ranked[min(len(ranked) - 1, int(len(ranked) * share))]

    def story(self, events: Iterable[Event], jobs: int = 3) -> str:
        """The least one needs to read: every event of the first broken ids, and all faults."""
        if not self.broken:
            return "nothing is broken"
        ids = [id for found in self.broken.values() for id in found[:jobs]]
        lines = [
            f"{name}: {len(found)}, e.g. {found[:jobs]}" for name, found in self.broken.items()
        ]
        told = FAULTS | {"cut", "calm"}
        for event in events:
            if event.id in ids or event.kind in told:
                lines.append(_line(event))
        return "\n".join(lines)

    def summary(self) -> str:
        counts = " ".join(f"{name}={len(found)}" for name, found in self.broken.items())
        verdict = counts or "all promises hold"
        return (
            f"acknowledged={self.acknowledged} uncertain={self.uncertain}"
            f" recovered={self.recovered} runs={self.runs} explained={self.explained}"
            f" faults={self.faults} worst={self.worst_recovery:.3f}s {verdict}"
        )


def _line(event: Event) -> str:
    parts = [f"{event.at:.6f}", f"pid {event.pid}", event.kind]
    names = ("id", "attempt", "token", "note", "lane", "target")
    parts += [f"{name}={value}" for name in names if (value := getattr(event, name))]
    return " ".join(parts)


def check(
    events: Sequence[Event],
    final: Mapping[str, Job],
    *,
    forgets: bool = False,
    patience: float = 5.0,
    author: Callable[[Job], tuple[int, int] | None] | None = None,
    result: Callable[[Job], bytes] | None = None,
) -> Report:
    """Judge a history against the store's contents after the faults stopped and work ran dry.

    ``forgets``: the store deletes jobs as they end. ``patience``: a run that was over that many
    seconds before the fault had time to be settled, so the fault doesn't excuse another run.
    ``author`` reads (pid, attempt) of the run that made a job's result out of that result;
    ``result`` says what it is, where each run of a job has the same.
    """
    return _Trial(events, final, forgets, patience, author, result).judge()


class _Trial:
    def __init__(
        self,
        events: Sequence[Event],
        final: Mapping[str, Job],
        forgets: bool,
        patience: float,
        author: Callable[[Job], tuple[int, int] | None] | None,
        result: Callable[[Job], bytes] | None,
    ) -> None:
        self.events = sorted(events, key=lambda event: event.at)
        self.final = final
        self.forgets = forgets
        self.patience = patience
        self.author = author
        self.result = result
        self.report = Report()
        self.by_id: dict[str, list[Event]] = defaultdict(list)
        self.parents: dict[int, int] = {}
        self.hits: dict[int, list[float]] = defaultdict(list)
        self.cuts: list[float] = []
        self.lanes: dict[str, set[str]] = defaultdict(set)
        for event in self.events:
            self._sort(event)
        self.runs = {id: _runs(story) for id, story in self.by_id.items()}

    def _sort(self, event: Event) -> None:
        if event.kind == "birth":
            self.parents[event.pid] = event.target
        elif event.kind in FAULTS:
            self.hits[event.target].append(event.at)
            self.report.faults += 1
        elif event.kind == "cut":
            self.cuts.append(event.at)
            self.report.faults += 1
        if event.id:
            self.by_id[event.id].append(event)
            if event.lane:
                self.lanes[event.lane].add(event.id)

    def judge(self) -> Report:
        for id in self.by_id.keys() | self.final.keys():
            self._fate(id, self.by_id.get(id, []), self.runs.get(id, []), self.final.get(id))
        for ids in self.lanes.values():
            self._lane(ids)
        for name, found in self.report.broken.items():
            setattr(self.report, name, sorted(set(found)))
        return self.report

    def _fate(self, id: str, story: list[Event], runs: list[Run], job: Job | None) -> None:
        """What became of one job, from its first sending to its end."""
        report = self.report
        sent = _sent(story)
        seen = job is not None or bool(runs)
        if sent == "acknowledged":
            report.acknowledged += 1
        elif sent == "uncertain":
            report.uncertain += 1
            report.recovered += seen
        elif seen:
            report.invented.append(id)
        report.runs += len(runs)
        if job is None:
            gone_rightly = self.forgets and any(_finished(run) for run in runs)
            gone_rightly |= any(event.kind == "purge" for event in story)
            if sent == "acknowledged" and not gone_rightly:
                report.lost.append(id)
        elif job.status.ended:
            report.ended += 1
            self._ending(id, story, runs, job)
        else:
            report.stuck.append(id)
        self._completions(id, story, runs, job)
        for before, after in pairwise(runs):
            self._again(before, after, story)

    def _ending(self, id: str, story: list[Event], runs: list[Run], job: Job) -> None:
        """A job may end, well or badly, only for a reason that is on record."""
        if job.status is Status.DONE:
            earned = any("done" in (run.note, run.verdict, run.asked) for run in runs)
            if not earned or (self.result is not None and job.result != self.result(job)):
                self.report.unearned.append(id)
        elif job.status is Status.DEAD:
            if not any(run.note == "error" or "dead" in (run.verdict, run.asked) for run in runs):
                self.report.buried.append(id)
        elif job.status is Status.CANCELLED:
            wished = any(event.kind == "cancel" for event in story) or any(
                run.note == "cancel" or "cancelled" in (run.verdict, run.asked) for run in runs
            )
            expired = job.failure is not None and job.failure.kind == "expired"
            if not wished and not expired:
                self.report.unasked.append(id)

    def _completions(self, id: str, story: list[Event], runs: list[Run], job: Job | None) -> None:
        """At most one completion counts, it is the last claim's, and it is never taken back."""
        revived = [event.at for event in story if event.kind == "revive"]
        endings = [run for run in runs if run.verdict in ENDINGS]
        if len(endings) > 1 + len(revived):
            self.report.doubled.append(id)
        for run in endings:
            if any(moment > run.began for moment in revived):
                continue
            later = [other for other in runs if other.began > run.began]
            if any(other.began < run.judged for other in later):
                self.report.doubled.append(id)
            elif later or (job is not None and not job.status.ended):
                self.report.undone.append(id)
        if job is not None and job.status is Status.DONE and self.author is not None:
            self._authorship(id, runs, job, self.author(job))

    def _authorship(
        self, id: str, runs: list[Run], job: Job, author: tuple[int, int] | None
    ) -> None:
        """The recorded result must be the one of the last run, and that run must have ended."""
        if author is None or not runs:
            self.report.invented.append(id)
            return
        last = runs[-1]
        if (last.pid, last.attempt) != author or job.attempt != last.attempt:
            self.report.doubled.append(id)
        elif last.ended is None:
            self.report.invented.append(id)

    def _again(self, before: Run, after: Run, story: list[Event]) -> None:
        """One run after another: why?"""
        cut = any(before.began - SKEW <= moment <= after.began for moment in self.cuts)
        if before.attempt and after.attempt <= before.attempt and not cut:
            unmoved = before.verdict == "give_back" and after.attempt == before.attempt
            if not unmoved:
                self.report.miscounted.append(after.id)
        if before.verdict in AGAIN or before.note in PLANNED:
            return
        if not before.verdict and before.asked in AGAIN:
            return  # it was asked for, and killed before it could note the answer
        if any(e.kind == "revive" and before.began < e.at <= after.began for e in story):
            return
        causes = [
            moment
            for moment in self._faults_of(before.pid)
            if before.began - SKEW <= moment <= after.began
            and (before.ended is None or moment <= before.ended + self.patience)
        ]
        if causes:
            self.report.explained += 1
            self.report.recoveries.append((after.began - causes[-1], after.id))
        else:
            self.report.unexplained.append(after.id)

    def _faults_of(self, pid: int) -> list[float]:
        """What hit a process or one that it hangs on: its worker, its worker's supervisor."""
        found = list(self.cuts)
        seen: set[int] = set()
        while pid and pid not in seen:
            seen.add(pid)
            found += self.hits.get(pid, [])
            pid = self.parents.get(pid, 0)
        return sorted(found)

    def _lane(self, ids: set[str]) -> None:
        """Jobs of a lane start in the order of their adds and never run beside one another."""
        invoked = {id: _first(self.by_id[id], "invoke") for id in ids}
        sure = sorted(
            (moment, self.runs[id][0].began)
            for id in ids
            if (moment := _first(self.by_id[id], "ok")) is not None and self.runs[id]
        )
        moments = [moment for moment, _ in sure]
        latest: list[float] = []
        for _, began in sure:
            latest.append(max(began, latest[-1]) if latest else began)
        for id in ids:
            moment = invoked[id]
            if moment is None or not self.runs[id]:
                continue
            earlier = bisect_right(moments, moment)
            if earlier and latest[earlier - 1] > self.runs[id][0].began:
                self.report.disordered.append(id)
        runs = sorted((run for id in ids for run in self.runs[id]), key=lambda run: run.began)
        for before, after in pairwise(runs):
            if before.id != after.id and self._until(before) > after.began:
                self.report.disordered.append(after.id)

    def _until(self, run: Run) -> float:
        """When a run was over: its end, or the fault that excuses whatever came later."""
        faults = [moment for moment in self._faults_of(run.pid) if moment >= run.began - SKEW]
        ended = run.ended if run.ended is not None else float("inf")
        return min([ended, *faults])


def _first(story: list[Event], kind: str) -> float | None:
    return next((event.at for event in story if event.kind == kind), None)


def _sent(story: list[Event]) -> str:
    """How the sending of a job ended, all repeats taken together."""
    open_calls: dict[int, int] = defaultdict(int)
    doubt = False
    for event in story:
        if event.kind == "ok":
            return "acknowledged"
        if event.kind == "invoke":
            open_calls[event.pid] += 1
        elif event.kind == "fail":
            open_calls[event.pid] -= 1
        elif event.kind == "info":
            doubt = True
    if doubt or any(count > 0 for count in open_calls.values()):
        return "uncertain"
    return "refused" if open_calls else "unsent"


def _finished(run: Run) -> bool:
    """Whether the run may have ended its job, answered or not."""
    return run.asked in ENDINGS or run.verdict in ENDINGS or run.note == "done"


def _runs(story: list[Event]) -> list[Run]:
    """The runs of one job by the order of their starts."""
    runs: list[Run] = []
    latest: dict[int, Run] = {}
    for event in story:
        if event.kind == "start":
            run = Run(event.id, event.pid, event.attempt, event.at)
            runs.append(run)
            latest[event.pid] = run
            continue
        found = latest.get(event.pid)
        if found is None:
            continue
        if event.attempt and event.attempt != found.attempt:
            continue  # of a claim that never began: it was given back, or cancelled before
        if event.kind == "end":
            found.ended, found.note = event.at, event.note
        elif event.kind == "settle":
            found.asked = event.note
        elif event.kind == "settled":
            found.verdict, found.judged = event.note, event.at
    return runs
