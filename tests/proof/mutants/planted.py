"""The bugs, one row each: what a hurried hand could break, and who has to see it."""

from __future__ import annotations

from tests.proof.mutants.plant import Bug

__all__ = ["BUGS"]

CONFORMANCE = "tests/conformance"
ENGINE = "tests/engine"
REPLAY = "tests/proof/test_replay.py::test_a_power_cut_after_any_operation_loses_nothing"
NTH = "tests/proof/test_nth.py::test_failed_syncs_are_never_acknowledged"
FAULTS = "tests/proof/test_faults.py"

WRITER, STORE = "stores/sqlite/writer.py", "stores/sqlite/store.py"
SCHEMA, MOVES = "stores/sqlite/schema.py", "stores/sqlite/moves.py"
CLAIMS, VERDICTS = "stores/sqlite/claims.py", "stores/sqlite/verdicts.py"
UPKEEP = "stores/sqlite/upkeep.py"


def conformance(*names: str) -> tuple[str, ...]:
    """Files of the conformance suite, for the SQLite store alone."""
    return ("-k", "sqlite", *(f"{CONFORMANCE}/test_{name}.py" for name in names))


def engine(file: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"{ENGINE}/{file}.py::{test}" for test in tests) or (f"{ENGINE}/{file}.py",)


STORE_BUGS = (
    Bug(
        "answers before the commit",
        WRITER,
        '                self._connection.execute("COMMIT")\n',
        '                deliver(group)\n                self._connection.execute("COMMIT")\n',
        (NTH,),
    ),
    Bug(
        "NORMAL instead of FULL",
        SCHEMA,
        "Durability.PROCESS: 1}.get(durability, 2)",
        "Durability.PROCESS: 1}.get(durability, 1)",
        (f"{REPLAY}[add]",),
    ),
    Bug(
        "settles without a sync",
        STORE,
        "partial(settle, verdicts=verdicts), synced=True",
        "partial(settle, verdicts=verdicts), synced=False",
        (f"{REPLAY}[claim]",),
    ),
    Bug(
        "adds without a sync",
        STORE,
        "return Op(None, True, len(jobs), jobs, model)",
        "return Op(None, False, len(jobs), jobs, model)",
        (f"{REPLAY}[add]",),
    ),
    Bug(
        "what many callers add is not synced",
        "stores/sqlite/op.py",
        "super().__init__(None, True, len(ids)",
        "super().__init__(None, False, len(ids)",
        (f"{REPLAY}[add]",),
    ),
    Bug(
        "a claim spoils the sync of those that share its commit",
        WRITER,
        "synced = any(op.synced for op in group)",
        "synced = all(op.synced for op in group)",
        (f"{REPLAY}[together]",),
    ),
    Bug(
        "stays at NORMAL once a claim was made",
        WRITER,
        "        if level == self._now_synchronous:",
        "        if level >= self._now_synchronous:",
        (f"{REPLAY}[claim]",),
    ),
    Bug(
        "no receipt check",
        VERDICTS,
        '_OURS = " AND jobs.receipt = +v.r AND jobs.state = 3"',
        '_OURS = " AND jobs.state = 3"',
        conformance("settle", "recover"),
    ),
    Bug(
        "no receipt check where many ended alike",
        VERDICTS,
        "+receipt = ? AND +state = 3",
        "? IS NOT NULL AND +state = 3",
        conformance("settle"),
    ),
    Bug(
        "told twice counts for its neighbour",
        VERDICTS,
        "if high - low + 1 == len(seqs) == len(set(seqs)):",
        "if high - low + 1 == len(seqs):",
        conformance("settle"),
    ),
    Bug(
        "receipts of zeros",
        CLAIMS,
        "        token = chance.token()\n",
        "        token = bytes(16)\n",
        conformance("claim_order"),
    ),
    Bug(
        "recovers what has not run out",
        UPKEEP,
        "state = 3 AND lease <= ? AND space",
        "state = 3 AND lease <= ? + 1e9 AND space",
        conformance("recover"),
    ),
    Bug(
        "keys of ended jobs are never freed",
        MOVES,
        "        if keyed:\n            self.values(_FREE_KEYS",
        "        if keyed and not self:\n            self.values(_FREE_KEYS",
        conformance("keys"),
    ),
    Bug(
        "a crash is not counted",
        UPKEEP,
        '        crashes += fate == "crash"\n',
        "        crashes += 0\n",
        conformance("crashes"),
    ),
    Bug(
        "priority ignored under a limit",
        CLAIMS,
        '_ORDER = " ORDER BY priority DESC, rank, due, seq LIMIT ?"',
        '_ORDER = " ORDER BY rank, due, seq LIMIT ?"',
        conformance("claim_order"),
    ),
    Bug(
        "no bell after a commit",
        WRITER,
        "        if news:\n            self._committed(news)\n",
        "",
        conformance("wait"),
    ),
    Bug(
        "closing takes the bell away before it rang",
        STORE,
        "        self._writer = self._reader = None\n        if writer is None",
        "        self._writer = self._reader = self._bell = None\n        if writer is None",
        ("tests/stores/test_sqlite_bells.py::test_whoever_closes_lets_the_bell_ring_first",),
    ),
    Bug(
        "a renewal extends nothing",
        UPKEEP,
        '") UPDATE jobs SET lease = ? FROM v"',
        '") UPDATE jobs SET lease = min(lease, ?) FROM v"',
        conformance("renew"),
    ),
    Bug(
        "starts are not counted",
        CLAIMS,
        "attempt = attempt + 1 WHERE",
        "attempt = attempt + 0 WHERE",
        conformance("claim_order"),
    ),
    Bug(
        "a lane is not held by the job that runs",
        CLAIMS,
        '    " AND (state = 3 OR state < 3 AND attempt > 0))"',
        '    " AND (state < 3 AND attempt > 0))"',
        conformance("lanes"),
    ),
    Bug(
        "what goes back unstarted keeps its lane shut",
        VERDICTS,
        "        if job.lane is not None and not verdict.started:",
        "        if job.lane is not None and verdict.started:",
        conformance("lanes"),
    ),
    Bug(
        "one more than the capacity",
        MOVES,
        "            if queued + more > capacity:",
        "            if queued + more > capacity + 1:",
        conformance("capacity"),
    ),
    Bug(
        "the digest is not looked at",
        CLAIMS,
        "            if crc(line, job.id, job.payload, opts) != mark:",
        "            if mark is None:",
        (f"{FAULTS}::test_s6_a_flipped_bit_is_noticed_and_the_rest_goes_on",),
    ),
    Bug(
        "the digests of many alike are not looked at",
        "stores/sqlite/rows.py",
        "if first.key_queued or crcs(lines[0], ids, data, opts[0]) != marks:",
        "if first.key_queued:",
        (f"{FAULTS}::test_s6_a_flipped_bit_is_noticed_and_the_rest_goes_on",),
    ),
    Bug(
        "one row of bad text stops the queue",
        CLAIMS,
        "except (msgspec.MsgspecError, UnicodeDecodeError, apsw.SQLError):",
        "except msgspec.MsgspecError:",
        (f"{FAULTS}::test_s6_text_that_is_none_any_more_holds_nobody_up",),
    ),
    Bug(
        "delayed jobs come too soon",
        CLAIMS,
        '_DUE = "SELECT seq, line FROM jobs WHERE state = 0 AND due <= ? ',
        '_DUE = "SELECT seq, line FROM jobs WHERE state = 0 AND due <= ? + 1 ',
        conformance("delay"),
    ),
    Bug(
        "a repeated add replaces the job",
        MOVES,
        '_ONCE = " ON CONFLICT (id, space) DO NOTHING"',
        '_ONCE = " ON CONFLICT (id, space) DO UPDATE SET payload = excluded.payload"',
        conformance("add"),
    ),
    Bug(
        "the dead are pruned like the done",
        MOVES,
        "(seq, None if keep is None or state == DEAD else now + keep)",
        "(seq, None if keep is None else now + keep)",
        conformance("prune", "crashes"),
    ),
    Bug(
        "a migration's version is written after its commit",
        SCHEMA,
        '                connection.pragma("user_version", version + 1)\n'
        '                connection.execute("COMMIT")\n',
        '                connection.execute("COMMIT")\n'
        '                connection.pragma("user_version", version + 1)\n',
        (
            "tests/proof/test_replay.py::test_a_power_cut_in_a_migration_leaves_the_old_schema_or"
            "_the_new",
        ),
    ),
    Bug(
        "new work is accepted until the disk is full",
        WRITER,
        "        if now < self._room_until:",
        "        if now >= 0:",
        ("tests/stores/test_sqlite_full_disk.py::test_only_what_is_new_is_refused",),
    ),
    Bug(
        "a failed commit is called certain",
        WRITER,
        "doubtful = isinstance(error, apsw.IOError | apsw.CorruptError)",
        "doubtful = False",
        ("tests/proof/test_nth.py",),
    ),
    Bug(
        "a paused queue is served",
        CLAIMS,
        "        if queue in queues and queue not in resting and task in tasks:",
        "        if queue in queues and task in tasks:",
        conformance("pause"),
    ),
    Bug(
        "what starts as it is added passes what is due",
        CLAIMS,
        "    if due or expired or not epoch or",
        "    if expired or not epoch or",
        ("tests/stores/test_sqlite_claim_next.py",),
    ),
    Bug(
        "what starts as it is added has no lease",
        CLAIMS,
        "    taken = (token, moves.clock.monotonic() + lease, worker)\n    seqs",
        "    taken = (token, moves.clock.monotonic(), worker)\n    seqs",
        ("tests/stores/test_sqlite_claim_next.py",),
    ),
    Bug(
        "a cancel asked for is forgotten",
        UPKEEP,
        '_ASK = "UPDATE jobs SET cancel = 1 WHERE seq = ?"',
        '_ASK = "UPDATE jobs SET cancel = 0 WHERE seq = ?"',
        conformance("cancel"),
    ),
)

WORKER_BUGS = (
    Bug(
        "verdicts are dropped while the store is away",
        "worker/settle.py",
        "                await self._clock.sleep(pause)\n",
        "                return\n",
        engine("test_worker_keeps", "test_verdicts_wait_for_a_store_that_is_away"),
    ),
    Bug(
        "leases are not renewed",
        "worker/renew.py",
        "            claim for id, claim in held.items() if self._seen.get(id) is claim or"
        " id in self._notes\n",
        "            claim for id, claim in held.items() if id in self._notes\n",
        engine("test_worker_keeps", "test_a_lease_is_kept_as_long_as_the_job_runs"),
    ),
    Bug(
        "a run whose claim was lost goes on",
        "worker/crew.py",
        "        if run is not None:\n            self._interrupt(run, lost.reason)\n",
        "        if run is not None:\n",
        engine("test_worker_keeps", "test_what_was_taken_over_is_cancelled_and_not_settled"),
    ),
    Bug(
        "suspects run beside others",
        "worker/crew.py",
        "            elif job.suspect:\n",
        "            elif job.suspect and self.closed:\n",
        engine("test_worker_runs", "test_suspects_run_alone_and_the_others_go_on"),
    ),
    Bug(
        "what is got again by who still runs it goes back as never started",
        "worker/crew.py",
        "self._settle(give_back(claim, 1.0, started=not counted))",
        "self._settle(give_back(claim, 1.0, started=False))",
        engine("test_worker_runs", "test_what_comes_back_while_it_still_runs_here_is_given_back"),
    ),
    Bug(
        "a file that was put back is never found again",
        WRITER,
        "            # Nothing was written. What was taken away or out of sight may be put back.\n",
        "            self._broken = error\n",
        ("tests/stores/test_sqlite_vanished.py",),
    ),
    Bug(
        "whoever waits for the lock for long judges leases all the same",
        UPKEEP,
        "    if moves.clock.monotonic() - asked > HELD_UP:\n",
        "    if limit <= 0:\n",
        ("tests/stores/test_sqlite_contention.py",),
    ),
    Bug(
        "whoever waits for the lock recovers what could not be renewed",
        UPKEEP,
        "    rows = fetch(moves.connection, _OVERDUE, asked, moves.space, limit)\n",
        "    now = moves.clock.monotonic()\n"
        "    rows = fetch(moves.connection, _OVERDUE, now, moves.space, limit)\n",
        ("tests/stores/test_sqlite_contention.py",),
    ),
    Bug(
        "a stop forgets what was claimed ahead",
        "worker/worker.py",
        "                crew.close()\n",
        "                crew.closed = True\n",
        engine("test_worker_stops"),
    ),
    Bug(
        "nobody looks for dead neighbours",
        "worker/tend.py",
        "            for worker, death in dead(store.lifelines):\n",
        "            for worker, death in dead(store.lifelines)[:0]:\n",
        (
            "tests/proof/test_kill.py::test_a_killed_workers_job_starts_again_long_before_its_lease_ends",
        ),
    ),
    Bug(
        "after an outage all leases count as over",
        "worker/side.py",
        "        return now >= self._quiet_until\n",
        "        return True\n",
        engine("test_worker_keeps"),
    ),
    Bug(
        "calls that hang are no outage",
        "worker/tend.py",
        "        count = await store.recover(RECOVER if judged else 0)\n",
        "        count = await store.recover(RECOVER) if judged else 0\n",
        engine("test_worker_keeps", "test_calls_that_hang_are_an_outage_though_none_of_them_fails"),
    ),
    Bug(
        "one attempt too many",
        "execution.py",
        "    if job.failures + 1 >= job.max_attempts:\n",
        "    if job.failures >= job.max_attempts:\n",
        engine("test_execution"),
    ),
    Bug(
        "the supervisor says nothing of a death",
        "worker/supervisor.py",
        '        self._write_cause(child, number, exit_code, "")\n',
        "",
        engine("test_supervisor"),
    ),
    Bug(
        "a job is not marked when it starts",
        "lifeline.py",
        "        _SLOT.pack_into(held, at, key, _ALONE if alone else _BESIDE)\n",
        "",
        engine("test_lifeline"),
    ),
)

PARTS = "tests/stores/test_rabbitmq_parts.py"

RABBIT_BUGS = (
    Bug(
        "acknowledges before what follows is confirmed",
        "stores/rabbitmq/settling.py",
        "        if not many:\n            confirmed(batch)\n            return\n",
        "        engine.intake.acknowledge([held for _, held in mine])\n"
        "        if not many:\n            confirmed(batch)\n            return\n",
        (f"{PARTS}::test_what_follows_is_confirmed_before_a_job_is_acknowledged",),
    ),
    Bug(
        "takes for stored what no queue took",
        "stores/rabbitmq/outbox.py",
        "        if posting.returned:\n            self._came_back(posting)\n        elif",
        "        if",
        (f"{PARTS}::test_what_comes_back_is_not_stored_though_it_is_confirmed",),
    ),
    Bug(
        "sets no limit of deliveries where -1 drops messages",
        "stores/rabbitmq/topology.py",
        "    if version >= (4, 0):\n",
        "    if version:\n",
        (f"{PARTS}::test_the_brokers_limit_of_deliveries_is_out_of_the_way",),
    ),
    Bug(
        "dead letters are moved once at most",
        "stores/rabbitmq/topology.py",
        '        "x-dead-letter-routing-key": dead,\n'
        '        "x-dead-letter-strategy": "at-least-once",\n',
        '        "x-dead-letter-routing-key": dead,\n',
        (f"{PARTS}::test_the_broker_itself_drops_nothing_of_a_line",),
    ),
    Bug(
        "a delivery is given away before all of it is there",
        "stores/rabbitmq/quick.py",
        "    if at > end:\n        return None\n    if buffer",
        "    if at <= end and buffer",
        ("tests/stores/test_rabbitmq_quick.py",),
    ),
    Bug(
        "nobody looks how long the broker lets a run last",
        "desk.py",
        '        check_timeout(f"task {task.name!r}", task.timeout, longest)\n',
        "",
        (f"{PARTS}::test_longer_than_the_broker_lets_it_is_refused_when_the_app_opens",),
    ),
)

BUGS = STORE_BUGS + WORKER_BUGS + RABBIT_BUGS
