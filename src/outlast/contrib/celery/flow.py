"""What a signature becomes when it is started: jobs, each of which carries what follows it.

Every id is known before the first job is stored. A job's followers are stored with its end, in one
write, and their ids are in it: whatever is killed and repeated, each of them is stored once.

A chord has a job of its own, which holds the ids of the members and the body. Each member's end
stores a look at them: whoever finds all of them done starts the body, under a key, so once. How
many are done is never counted beside the jobs themselves, so it can't be wrong. The chord's own job
looks too, now and then, for the member whose end nobody could tell of.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, cast
from uuid import NAMESPACE_OID, uuid5

from msgspec import Struct
from msgspec.structs import replace

from outlast.contrib.celery.canvas import Signature, chain, chord, group, read
from outlast.contrib.celery.values import stand_in
from outlast.errors import ConfigurationError
from outlast.job import DAY, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outlast.job import Job

__all__ = [
    "ACCUMULATE",
    "CHORD",
    "LOOK",
    "MEMBERS_KEPT",
    "Place",
    "ends_of",
    "freeze",
    "jobs_of",
    "what_follows",
    "what_follows_death",
    "what_replaces",
    "when_complete",
]

CHORD = "outlast.celery.chord"
LOOK = "outlast.celery.look"
ACCUMULATE = "celery.accumulate"
"""The task that makes one result of a group's."""
MEMBERS_KEPT = 30 * DAY
"""How long the members of a chord are kept at least: it may take so long."""


class Place(Struct, frozen=True, kw_only=True):
    """Where a signature stands in the whole: what follows it, and who waits for it."""

    rest: tuple[Signature, ...] = ()
    chord: str | None = None
    errbacks: tuple[Any, ...] = ()
    group: str | None = None
    root: str | None = None
    parent: str | None = None
    key: str | None = None
    failed: str | None = None
    """What the job is to fail with at once: a member of its chord has failed."""


def freeze(sig: Signature, new_id: Callable[[], str]) -> Signature:
    """A copy in which every job has its id."""
    copy = sig.copy()
    if isinstance(copy, chain):
        *steps, last = copy.tasks
        last = last.merged(options=_passed(copy.options, last))
        copy["kwargs"] = {"tasks": [freeze(one, new_id) for one in (*steps, last)]}
        copy["options"].pop("link", None)
    elif isinstance(copy, group):
        copy["options"].setdefault("task_id", new_id())
        shared = {k: v for k, v in copy.options.items() if k != "task_id"}
        copy["kwargs"] = {
            "tasks": [freeze(one.merged(options=shared), new_id) for one in copy.tasks]
        }
    elif isinstance(copy, chord):
        copy["options"].setdefault("chord_id", new_id())
        body = copy.body
        if body is not None:
            body = freeze(body.merged(options=_passed(copy.options, body)), new_id)
        copy["kwargs"] = {"header": freeze(copy["kwargs"]["header"], new_id), "body": body}
    else:
        copy["options"].setdefault("task_id", new_id())
    return copy


def _passed(options: dict[str, Any], last: Signature) -> dict[str, Any]:
    """What is said of a whole and meant for its last: the id, and who is called after it."""
    passed = {"task_id": options["task_id"]} if "task_id" in options else {}
    if links := _listed(options.get("link")):
        passed["link"] = [*_listed(last.options.get("link")), *links]
    return passed


def ends_of(sig: Signature) -> list[str]:
    """The ids of the jobs that are the last of a signature that was frozen."""
    if isinstance(sig, chain):
        return ends_of(sig.tasks[-1])
    if isinstance(sig, chord) and sig.body is not None:
        return ends_of(sig.body)
    if isinstance(sig, group | chord):
        return [id for member in sig.tasks for id in ends_of(member)]
    return [cast("str", sig.id)]


def shape_of(sig: Signature) -> Any:
    """How the results of these come: lists within a list where a group is the last of a member."""
    if isinstance(sig, chain):
        return shape_of(sig.tasks[-1])
    if isinstance(sig, chord) and sig.body is not None:
        return shape_of(sig.body)
    if not isinstance(sig, group | chord):
        return sig.id
    found: list[Any] = []
    for member in sig.tasks:
        # A group that is itself a member is nothing but its members.
        found += shape_of(member) if isinstance(member, group) else [shape_of(member)]
    return found


def all_of(sig: Signature) -> list[str]:
    """The ids of all jobs of a signature that was frozen."""
    if isinstance(sig, chain | group):
        return [id for one in sig.tasks for id in all_of(one)]
    if isinstance(sig, chord):
        body = [] if sig.body is None else all_of(sig.body)
        return [*(id for one in sig.tasks for id in all_of(one)), *body]
    return [cast("str", sig.id)]


def jobs_of(sig: Signature, place: Place, make: Callable[..., Job]) -> list[Job]:
    """The jobs that a signature begins with."""
    errbacks = (*place.errbacks, *_listed(sig.options.get("link_error")))
    if isinstance(sig, chain):
        first, *others = sig.tasks
        # Those that follow bring the errbacks of the whole along.
        others = [_with_errbacks(one, errbacks) for one in others]
        return jobs_of(first, replace(place, rest=(*others, *place.rest), errbacks=errbacks), make)
    if isinstance(sig, group) and not place.rest:
        inner = replace(place, errbacks=errbacks, group=sig.id)
        return [
            job for n, one in enumerate(sig.tasks) for job in jobs_of(one, _nth(inner, n), make)
        ]
    if isinstance(sig, group):
        first, *others = place.rest
        body = first if not others else chain(first, *others)
        whole = chord(sig, body, app=sig._app, chord_id=f"{sig.id}.chord")
        return jobs_of(whole, replace(place, rest=()), make)
    if isinstance(sig, chord):
        return _chord(sig, replace(place, errbacks=errbacks), make)
    return [make(sig, _message(sig, replace(place, errbacks=errbacks)), place)]


def _nth(place: Place, number: int) -> Place:
    return place if place.key is None else replace(place, key=f"{place.key}.{number}")


def _with_errbacks(sig: Signature, errbacks: Sequence[Any]) -> Signature:
    if not errbacks:
        return sig
    own = _listed(sig.options.get("link_error"))
    return sig.merged(options={"link_error": [*own, *errbacks]})


def _chord(sig: chord, place: Place, make: Callable[..., Job]) -> list[Job]:
    body = sig.body
    header = cast("group", sig["kwargs"]["header"])
    if body is None:
        return jobs_of(header, place, make)
    if place.rest:
        body = chain(body, *place.rest)
    place = replace(place, rest=())
    if not header.tasks:
        return jobs_of(body.merged(([],)), place, make)
    id = cast("str", sig.options["chord_id"])
    ends = ends_of(header)
    plan = {
        "ids": ends,
        "shape": shape_of(header),
        "before": sorted(set(all_of(header)) - set(ends)),
        "body": body,
        "errbacks": list(place.errbacks),
        "chord": place.chord,
        "root": place.root,
    }
    own = make(Signature(CHORD, options={"task_id": id}), plan, place)
    inner = Place(
        chord=id,
        root=place.root,
        parent=place.parent,
        key=None if place.key is None else f"{place.key}.m",
        failed=place.failed,
    )
    return [own, *jobs_of(header, inner, make)]


def _message(sig: Signature, place: Place) -> dict[str, Any]:
    """What a job carries; what is empty is left out."""
    found = {
        "args": list(sig.args),
        "kwargs": sig.kwargs,
        "rest": list(place.rest),
        "chord": place.chord,
        "links": _listed(sig.options.get("link")),
        "errbacks": list(place.errbacks),
        "group": place.group,
        "root": place.root,
        "parent": place.parent,
        "headers": sig.options.get("headers"),
        "failed": place.failed,
        "error": sig.options.get("error"),
    }
    return {name: value for name, value in found.items() if value}


def what_follows(
    id: str, message: dict[str, Any], value: Any, make: Callable[..., Job]
) -> list[Job]:
    """The jobs that come after one that returned ``value``."""
    root = message.get("root") or id
    new_id = _derived(id, "link")
    jobs: list[Job] = []
    for callback in message.get("links", ()):
        sig = freeze(read(callback).merged((value,)), new_id)
        jobs += jobs_of(sig, Place(root=root, parent=id), make)
    rest = [read(one) for one in message.get("rest", ())]
    inside = message.get("chord")
    if rest:
        first, *others = rest
        place = Place(rest=tuple(others), chord=inside, root=root, parent=id)
        jobs += jobs_of(first.merged((value,)), place, make)
    elif inside:
        jobs.append(
            make(Signature(LOOK, options={"task_id": f"{id}.look"}), {"of": inside}, Place())
        )
    return jobs


def what_follows_death(
    id: str, message: dict[str, Any], error: dict[str, Any], make: Callable[..., Job]
) -> list[Job]:
    """The jobs that come after one that failed for good."""
    new_id = _derived(id, "error")
    jobs: list[Job] = []
    for callback in message.get("errbacks", ()):
        sig = read(callback).merged(options={"error": {**error, "id": id}})
        jobs += jobs_of(freeze(sig, new_id), Place(root=message.get("root") or id, parent=id), make)
    if inside := message.get("chord"):
        jobs.append(
            make(Signature(LOOK, options={"task_id": f"{id}.look"}), {"of": inside}, Place())
        )
    return jobs


def what_replaces(
    id: str, message: dict[str, Any], sig: Signature, make: Callable[..., Job]
) -> tuple[dict[str, Any], list[Job]]:
    """The jobs that begin what stands in for one that runs, and what that one returns instead.

    All that waits for the one, and all that follows it, has to do with the last of these.
    """
    if isinstance(sig, chain) and not sig.tasks:
        raise ConfigurationError("a task can't be replaced by an empty chain")
    if _gives_several(sig):
        sig = sig | Signature(ACCUMULATE, kwargs={"index": 0}, app=sig._app)
    links = [*_listed(sig.options.get("link")), *message.get("links", ())]
    frozen = freeze(sig.merged(options={"link": links}), _derived(id, "replace"))
    place = Place(
        rest=tuple(read(one) for one in message.get("rest", ())),
        chord=message.get("chord"),
        errbacks=tuple(message.get("errbacks", ())),
        group=message.get("group"),
        root=message.get("root") or id,
        parent=id,
    )
    (end,) = ends_of(frozen)
    others = [one for one in all_of(frozen) if one != end]
    return stand_in(end, others), jobs_of(frozen, place, make)


def _gives_several(sig: Signature | None) -> bool:
    """Whether it ends with a group, so that no single job is its last."""
    if isinstance(sig, chain):
        return _gives_several(sig.tasks[-1])
    return isinstance(sig, group) or (isinstance(sig, chord) and _is_open(sig.body))


def _is_open(body: Signature | None) -> bool:
    return body is None or _gives_several(body)


def when_complete(
    id: str, plan: dict[str, Any], members: Sequence[Job | None], decode: Callable[[Job], Any],
    make: Callable[..., Job],
) -> list[Job]:  # fmt: skip
    """The jobs that a chord's body begins with, if its members have all ended; else none."""
    failed = next((job for job in members if job is not None and _is_bad(job)), None)
    ends = members[: len(plan["ids"])]
    if failed is None and any(job is None or job.status is not Status.DONE for job in ends):
        return []
    place = Place(
        chord=plan.get("chord"),
        errbacks=tuple(plan.get("errbacks", ())),
        root=plan.get("root"),
        parent=id,
        key=f"chord-{id}",
    )
    body = read(plan["body"])
    if failed is not None:
        why = failed.failure.message if failed.failure is not None else str(failed.status)
        kind = failed.failure.type if failed.failure is not None else ""
        text = f"Dependency {failed.id} raised {kind}({why!r})"
        return jobs_of(body.merged(([],)), replace(place, failed=text), make)
    results = [decode(job) for job in ends if job is not None]
    values = dict(zip(plan["ids"], results, strict=True))
    results = _laid(plan.get("shape", plan["ids"]), values)
    return jobs_of(body.merged((results,)), place, make)


def _laid(shape: Any, values: dict[str, Any]) -> Any:
    return [_laid(one, values) for one in shape] if isinstance(shape, list) else values[shape]


def _derived(id: str, word: str) -> Callable[[], str]:
    """Ids for what follows a job: the same ones, whoever works them out again."""
    numbers = count()
    return lambda: str(uuid5(NAMESPACE_OID, f"{id}/{word}/{next(numbers)}"))


def _is_bad(job: Job) -> bool:
    return job.status in (Status.DEAD, Status.CANCELLED)


def _listed(found: Any) -> list[Any]:
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]
