"""Bugs in the Redis store: in its scripts, in what it promises, and in what it does again."""

from __future__ import annotations

from tests.proof.mutants.plant import Bug

__all__ = ["REDIS_BUGS"]

REDIS = "stores/redis"
TESTS = "tests/stores/test_redis.py"


def conformance(name: str) -> tuple[str, ...]:
    """A file of the conformance suite, for the Redis store alone."""
    return ("-k", "redis", f"tests/conformance/test_{name}.py")


REDIS_BUGS = (
    Bug(
        "Redis: no receipt check",
        f"{REDIS}/lua/settle.lua",
        "  elseif S and S.st == 'r' and S.v == ARGV[first + 1] then\n",
        "  elseif S and S.st == 'r' then\n",
        conformance("settle"),
    ),
    Bug(
        "Redis: no receipt check for what is usual",
        f"{REDIS}/lua/settle.lua",
        "  if sub(text, own + 1, by - 1) ~= receipt then return false end\n",
        "",
        conformance("settle"),
    ),
    Bug(
        "Redis: delayed jobs come too soon",
        f"{REDIS}/lua/base.lua",
        "call('ZRANGEBYSCORE', P .. 'l' .. line, '-inf', now, 'LIMIT', 0, limit)",
        "call('ZRANGEBYSCORE', P .. 'l' .. line, '-inf', now + 1, 'LIMIT', 0, limit)",
        conformance("delay"),
    ),
    Bug(
        "Redis: recovers what has not run out",
        f"{REDIS}/lua/recover.lua",
        "'-inf', mono, 'LIMIT', 0, limit)",
        "'-inf', mono + 1e9, 'LIMIT', 0, limit)",
        conformance("recover"),
    ),
    Bug(
        "Redis: a lane is not held by the job that runs",
        f"{REDIS}/lua/claim.lua",
        "  if H[10] then call('HSET', P .. 'h', H[10], id) end\n",
        "",
        conformance("lanes"),
    ),
    Bug(
        "Redis: everysec is called power",
        f"{REDIS}/opening.py",
        '    if fsync != "always":\n',
        '    if fsync not in ("always", "everysec"):\n',
        ("tests/stores/test_redis_settings.py",),
    ),
    Bug(
        "Redis: what is not kept is added twice when an answer is lost",
        f"{REDIS}/engine.py",
        "        job.keep is not None and job.keep < SOON_FORGOTTEN for job in op.jobs\n",
        "        False for job in op.jobs\n",
        (f"{TESTS}::test_what_is_not_kept_is_not_added_twice",),
    ),
    Bug(
        "Redis: acknowledges what no replica has",
        f"{REDIS}/safe.py",
        "                    if not sure:\n",
        "                    if sure is None:\n",
        ("tests/stores/test_redis_safe.py::test_nothing_is_acknowledged_that_no_replica_has",),
    ),
)
