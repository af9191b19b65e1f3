"""Adds and settlements that are written in one transaction, and what each of them is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlast.job import Added, Alike
from outlast.limits import is_plain
from outlast.stores.postgres.adds import add_alike, add_carefully, add_fresh
from outlast.stores.postgres.swift import add_swiftly
from outlast.stores.postgres.upkeep import compact
from outlast.stores.postgres.verdicts import lines_of, settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Job, Lost
    from outlast.stores.postgres.op import Op
    from outlast.stores.postgres.turn import Turn

__all__ = ["Group"]


class Group:
    """Adds and settlements that are written together, and what each of them is answered."""

    def __init__(self, ops: Sequence[Op[Any]], careful: bool) -> None:
        self.careful = careful
        self.compacts = False
        self.told = False
        """Whether its commit has told other processes of it."""
        self._adds = [op for op in ops if op.jobs]
        self._settles = [op for op in ops if op.verdicts]
        self._model = _model_of(self._adds)
        self._jobs: list[Job] = []
        self._ids: list[list[str]] = []
        if self._model is None:
            self._jobs = [job for op in self._adds for job in op.jobs]
        else:
            self._ids = [_ids(op.jobs) for op in self._adds]
        self._verdicts = [verdict for op in self._settles for verdict in op.verdicts]
        self._added: list[list[Added]] = []
        self._lost: list[list[Lost]] = []

    def lines(self) -> set[tuple[str, str | None]]:
        jobs = self._jobs if self._model is None else (self._model,)
        return lines_of(self._verdicts) | {(job.queue, job.task) for job in jobs}

    @property
    def is_swift(self) -> bool:
        """Whether all of it is one add, of jobs of which nothing is asked."""
        return self._model is not None and not (self._verdicts or self.careful or self.compacts)

    @property
    def queue(self) -> str:
        """Of what is swift."""
        assert self._model is not None
        return self._model.queue

    async def add(self, turn: Turn, commit: str, call: tuple[str, ...]) -> bool | None:
        """``write`` and the commit, for what is swift; None if nothing was done."""
        assert self._model is not None
        told = await add_swiftly(turn, self._model, *self._columns(), commit, call)
        self.told = bool(told)
        return None if told is None else True

    def _columns(self) -> tuple[list[str], list[bytes]]:
        ids = [id_ for each in self._ids for id_ in each]
        return ids, [each for op in self._adds for each in _payloads(op.jobs)]

    async def write(self, turn: Turn) -> bool:
        self._lost = []
        if self.careful:
            # Jobs are locked before keys, here as in a claim.
            for op in self._settles:
                self._lost.append(await settle(turn, op.verdicts, careful=True))
            if self._adds:
                self._added = await add_carefully(turn, self._adds)
        else:
            if self._model is not None:
                await add_alike(turn, self._model, *self._columns())
            elif self._jobs:
                await add_fresh(turn, self._jobs)
            if self._verdicts:
                await settle(turn, self._verdicts, careful=False)
        if self.compacts:
            await compact(turn)
        return True

    def answer(self) -> None:
        """Once it is committed."""
        if not self.careful:
            ids = self._ids or [[job.id for job in op.jobs] for op in self._adds]
            self._added = [[Added(id_) for id_ in each] for each in ids]
            self._lost = [[] for _ in self._settles]
        for op, added in zip(self._adds, self._added, strict=True):
            op.answer = added
        for op, lost in zip(self._settles, self._lost, strict=True):
            op.answer = lost


def _model_of(adds: Sequence[Op[Any]]) -> Job | None:
    """The job that all of these are like but for id and payload, if nothing is asked of it."""
    model = adds[0].model if adds else None
    if model is None or not is_plain(model) or any(op.model is not model for op in adds):
        return None
    return model


def _ids(jobs: Sequence[Job]) -> list[str]:
    return list(jobs.ids) if type(jobs) is Alike else [job.id for job in jobs]


def _payloads(jobs: Sequence[Job]) -> Sequence[bytes]:
    return jobs.payloads if type(jobs) is Alike else [job.payload for job in jobs]
