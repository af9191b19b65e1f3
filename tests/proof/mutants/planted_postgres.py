"""Bugs in the PostgreSQL store: in what it promises, in its statements, and in what it tells."""

from __future__ import annotations

from tests.proof.mutants.plant import Bug

__all__ = ["POSTGRES_BUGS"]

POSTGRES = "stores/postgres"
TESTS = "tests/stores/test_postgres"
WAITS = f"{TESTS}.py::test_whatever_is_promised_waits_for_the_disk"


def conformance(file: str, test: str) -> tuple[str, ...]:
    """A test of the conformance suite, on the PostgreSQL store alone."""
    return ("-k", f"{test} and postgresql and not rabbitmq", f"tests/conformance/test_{file}.py")


POSTGRES_BUGS = (
    Bug(
        "PostgreSQL: no receipt check",
        f"{POSTGRES}/verdicts.py",
        'AND receipt = $2::bytea"\n',
        'AND $2::bytea IS NOT NULL"\n',
        conformance("settle", "next_holder"),
    ),
    Bug(
        "PostgreSQL: settles as durably as the role likes",
        f"{POSTGRES}/link.py",
        '    local = {"synchronous_commit": commit} | planner(nested)\n',
        "    local = planner(nested)\n",
        (WAITS,),
    ),
    Bug(
        "PostgreSQL: adds as durably as the role likes",
        f"{POSTGRES}/swift.py",
        "BEGIN ignored := set_config('synchronous_commit', $6, true);",
        "BEGIN ignored := $6;",
        (WAITS,),
    ),
    Bug(
        "PostgreSQL: recovers what has not run out",
        f"{POSTGRES}/upkeep.py",
        "(lease > $1::float8 AND",
        "(lease > $1::float8 + 1e9 AND",
        conformance("recover", "only_what_ran_out"),
    ),
    Bug(
        "PostgreSQL: what has ended is added again",
        f"{POSTGRES}/swift.py",
        'f") AND EXISTS ({adds.ALIKE_ENDED})"\n',
        'f") AND false AND EXISTS ({adds.ALIKE_ENDED})"\n',
        (f"{TESTS}_swift.py::test_the_same_id_again",),
    ),
    Bug(
        "PostgreSQL: calls durable what no standby has",
        f"{POSTGRES}/link.py",
        "        if not names or self._gave_up:\n",
        "        if not names:\n",
        (f"{TESTS}_replicated.py::test_a_commit_that_waits_for_no_standby_promises_nothing",),
    ),
    Bug(
        "PostgreSQL: nobody hears of what was committed",
        f"{POSTGRES}/engine.py",
        "        together.answer()\n        self._tell(news, told=together.told)\n",
        "        together.answer()\n",
        conformance("wait", "wakes_for_a_new_job"),
    ),
)
