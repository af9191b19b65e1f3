"""The usual add, claim and look for ends in one trip each: routines that the server holds.

A transaction takes four trips and a NOTIFY one more, and a lone job waits for all of them. A
function that is called alone is a transaction of its own; settings of the planner are part of it,
and its plans are made under them. Its name tells its text, so that each release calls its own, and
nothing is kept in a session. Where it isn't there, or the case is not the usual one, the long way
is taken.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import asyncpg

from outlast.stores.news import WORK
from outlast.stores.postgres import adds, claims, ledger
from outlast.stores.postgres.bell import TELL_TIMEOUT
from outlast.stores.postgres.faults import Careful, Dropped
from outlast.stores.postgres.link import LOCK_TIMEOUT, planner
from outlast.stores.postgres.rows import LIVE, opts_of, texts
from outlast.stores.postgres.schema import lock_number
from outlast.stores.postgres.turn import LOG_INTO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg import Connection

    from outlast.job import Claim, Job
    from outlast.stores.postgres.claims import Wanted
    from outlast.stores.postgres.schema import Names
    from outlast.stores.postgres.turn import Turn

__all__ = ["add_swiftly", "claim_swiftly", "ended_swiftly", "make"]

# An assignment that asks no table costs a tenth of what a PERFORM does.
_SET = f" ignored := set_config('lock_timeout', '{LOCK_TIMEOUT}', true);"
_ISOLATED = "current_setting('transaction_isolation') <> 'read committed'"


def _take(text: str) -> str:
    """Rows taken, counted, and with the keys dropped that are held until then: as in a claim."""
    taken = text.replace("$1::int AND", "$1[1] AND").replace(LIVE, "jobs.*")
    return (
        f"RETURN QUERY WITH t AS ({taken}), c AS ({LOG_INTO}"
        " SELECT line, -count(*), 0, count(*), 0, 0, 0 FROM t GROUP BY line),"
        " k AS (DELETE FROM @keys k USING t, @lines l WHERE t.key IS NOT NULL"
        " AND t.opts LIKE '%\"key_queued\":true%' AND l.id = t.line"
        " AND k.task = coalesce(l.task, '') AND k.key = t.key AND k.job = t.id) SELECT * FROM t"
    )


def _function(
    kind: str, takes: str, gives: str, body: str, nested: str | None = None
) -> tuple[str, str]:
    sets = " ".join(f"SET {name} TO {value}" for name, value in planner(nested).items())
    return _routine("FUNCTION", kind, takes, f"RETURNS {gives} VOLATILE {sets}", body)


def _routine(what: str, kind: str, takes: str, more: str, body: str) -> tuple[str, str]:
    """Its name, and what makes it."""
    rest = f"({takes}) {more} LANGUAGE plpgsql AS $f$ {body} END $f$"
    name = f"{kind}_{hashlib.sha256(rest.encode()).hexdigest()[:16]}"
    return name, f"CREATE {what} @{name}{rest}"


_CLAIM, _MAKE_CLAIM = _function(
    "claim",
    "int[], int, bytea, float8, text, float8, bigint, int",
    "SETOF @jobs",
    "DECLARE nobody @jobs; n bigint; odd boolean; ignored text;"
    " BEGIN ignored := set_config('synchronous_commit', 'off', true);"
    + _SET
    # All in one look: each query more costs a lone claim a tenth of its time.
    + " SELECT (SELECT min(due) FROM @jobs WHERE state = 0), "
    + f"{_ISOLATED} OR {claims.EXPIRED} OR {claims.LANED}".replace("{now}", "$6")
    + f" OR {claims.LINES} <> $8 OR EXISTS (SELECT FROM @pauses)"
    " OR EXISTS (SELECT FROM @bounded) INTO nobody.due, odd;"
    " IF odd OR nobody.due <= $6 THEN RETURN NEXT nobody; RETURN; END IF;"
    f" IF cardinality($1) = 1 THEN {_take(claims.TAKE_ONE_LINE)};"
    f" ELSE {_take(claims.TAKE_MERGED)}; END IF; GET DIAGNOSTICS n = ROW_COUNT;"
    # Who found too little is told as well how long there is to wait.
    " IF n < $2 THEN nobody.state := 0; RETURN NEXT nobody; END IF;",
    nested="on",
)
_COUNT_ADDED = f"{LOG_INTO} VALUES ($3, cardinality($2), 0, 0, 0, 0, 0)"
_ADD, _MAKE_ADD = _function(
    "add",
    "text, bytea[], int, float8, text, text, text, text",
    "boolean",
    "DECLARE ignored text; BEGIN ignored := set_config('synchronous_commit', $6, true);"
    + f"{_SET} IF {_ISOLATED} THEN RETURN false; END IF;"
    f" IF cardinality($2) = 1 THEN WITH j AS ({adds.LONE}) {_COUNT_ADDED};"
    f" ELSE {adds.ALIKE}; {_COUNT_ADDED}; END IF; IF ("
    + adds.MAYBE_ENDED.replace("$1", "$7").replace("$2", "$8")
    + f") AND EXISTS ({adds.ALIKE_ENDED})"
    " THEN RAISE unique_violation USING MESSAGE = 'a job of this id has ended'; END IF;"
    " RETURN true;",
)
_TELL, _MAKE_TELL = _routine(
    "PROCEDURE",
    "tell",
    "text, bytea[], int, float8, text, text, text, text, text, text, INOUT done boolean",
    "",
    f"DECLARE ignored text; BEGIN done := @{_ADD}($1, $2, $3, $4, $5, $6, $7, $8);"
    " IF done THEN COMMIT;"
    # It must be without settings of its own, to commit: so all is named with its schema.
    " ignored := pg_catalog.set_config('synchronous_commit', 'off', true);"
    # Others who notify are not waited for as long as they like: it can be told later.
    f" ignored := pg_catalog.set_config('lock_timeout', '{TELL_TIMEOUT}', true);"
    # Where it is full, the commit would fail: of a job that is there already.
    " IF pg_catalog.pg_notification_queue_usage() OPERATOR(pg_catalog.<)"
    " '0.9'::pg_catalog.float8 THEN PERFORM pg_catalog.pg_notify($9, $10); END IF; END IF;",
)
"""The add, its commit, and what others are told of it in a second commit, which no disk is waited
for in: others who tell are held up for as long as that takes, and no longer."""
_LOOK, _MAKE_LOOK = _function(
    "look",
    "text[]",
    "TABLE (id text, ended boolean)",
    f"BEGIN RETURN QUERY {ledger.HAVE_ENDED};",
)
_CALL_LOOK = f"SELECT id, ended FROM @{_LOOK}($1)"
_CALL_CLAIM = f"SELECT {LIVE} FROM @{_CLAIM}($1, $2, $3, $4, $5, $6, $7, $8)"
_CALL_ADD = f"SELECT @{_ADD}($1, $2, $3, $4, $5, $6, $7, $8)"
_CALL_TELL = f"CALL @{_TELL}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, NULL)"
_THERE = (
    "SELECT p.proname FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n"
    " ON n.oid = p.pronamespace WHERE n.nspname = $1::text AND p.proname = ANY($2::text[])"
)


async def make(connection: Connection, names: Names) -> None:
    """Have them there, if our role may make any; else the others do without."""
    wanted = {_CLAIM: _MAKE_CLAIM, _ADD: _MAKE_ADD, _TELL: _MAKE_TELL, _LOOK: _MAKE_LOOK}
    if len(await connection.fetch(_THERE, names.schema, list(wanted))) == len(wanted):
        return
    try:
        async with connection.transaction(isolation="read_committed"):
            number = lock_number(names.schema, "migrate")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", number)
            for (name,) in await connection.fetch(_THERE, names.schema, list(wanted)):
                del wanted[name]
            for text in wanted.values():
                await connection.execute(names[text])
    except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedObjectError):
        return  # the second: without the language


async def claim_swiftly(turn: Turn, token: bytes, wanted: Wanted) -> list[Claim] | None:
    """``claim``, the usual way round; None if this is not the usual case, and nothing was done."""
    lines = claims.lines_of(turn, wanted.queues, wanted.tasks)
    if not lines:
        return None
    marks = claims.marks(turn, token, wanted)
    rows = await turn.fetch(_CALL_CLAIM, lines, wanted.limit, *marks, len(turn.lines.names))
    if rows and rows[-1][0] is None:
        nobody = rows.pop()
        if nobody[3] is None:
            return None
        turn.due = nobody[10]
    return claims.read(turn, rows, token, newest=False)


async def ended_swiftly(turn: Turn, ids: Sequence[str]) -> list[Job] | None:
    """``ledger.ended`` where all are there and none has ended; else None."""
    found = await turn.fetch(_CALL_LOOK, texts(ids))
    if len(found) < len(set(ids)) or any(ended for _, ended in found):
        return None
    return []


async def add_swiftly(
    turn: Turn,
    model: Job,
    ids: list[str],
    payloads: list[bytes],
    commit: str,
    call: tuple[str, ...],
) -> bool | None:
    """``add_alike``, with the commit; None if nothing was done. Raises ``Careful`` as that does.

    ``call``: where and what to tell others once it is committed, if they are to be told by this;
    the answer is whether they were.
    """
    line = turn.lines.ids[model.queue, model.task]
    turn.tell(WORK, (model.queue,))
    marks = (line, turn.now, opts_of(model), commit, min(ids), max(ids))
    text = _CALL_TELL if call else _CALL_ADD
    try:
        done = await turn.value(text, adds.in_a_row(ids), payloads, *marks, *call)
    except asyncpg.UniqueViolationError:
        raise Careful from None
    except asyncpg.LockNotAvailableError as error:
        if not call or _ADD in (error.context or ""):
            raise
        return False  # it is committed, and it was only the news that had to wait
    except asyncpg.QueryCanceledError as error:
        if not call:
            raise
        # Between the two commits, perhaps.
        raise Dropped(error, committing=True) from error
    return bool(call) if done else None
