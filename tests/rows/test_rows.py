"""The map from the rows of the fault catalogue to the tests that prove them; it is kept true."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CATALOGUE = {
    "P": 8, "S": 14, "W": 10, "C": 4, "K": 3, "N": 4, "M": 2, "H": 3, "U": 4, "O": 5,
}  # fmt: skip
"""Producer, store, worker, scheduler, clock, network, memory, shutdown, upgrade and human error."""

LATER = {
    "S10": "two primaries: whoever decides the failover of a server has to fence the old one",
    "C1": "two schedulers: there is no scheduler yet",
    "C2": "ticks missed while down: there is no scheduler yet",
    "C3": "summer time: there is no scheduler yet",
}
"""Rows that are another's to keep, or that concern what isn't built yet."""

ROWS: dict[str, tuple[str, ...]] = {
    "P1": (
        "tests/proof/test_kill.py::test_a_thousand_forks_killed_at_random_moments",
        "tests/proof/test_kill.py::test_a_kill_at_any_call_that_writes",
        "tests/proof/test_kill.py::test_three_hundred_kills_of_real_workers_and_producers",
    ),
    "P2": (
        "tests/stores/test_sqlite_io_errors.py::"
        "test_an_add_that_fails_is_uncertain_and_may_be_repeated",
        "tests/conformance/test_add.py::test_the_same_id_again_changes_nothing",
        "tests/engine/test_app_enqueue.py::test_storing_a_call_again_is_one_job",
    ),
    "P3": ("tests/conformance/test_cancel_safety.py::test_add",),
    "P4": (
        "tests/engine/test_app_sync.py::test_an_app_opened_before_a_fork_is_refused_in_the_child",
        "tests/engine/test_app_sync.py::test_a_forked_child_enqueues_too",
        "tests/engine/test_app_sync.py::"
        "test_a_program_that_just_ends_has_stored_everything_and_closed",
    ),
    "P5": (
        "tests/engine/test_transaction.py::test_a_job_if_and_only_if_it_commits",
        "tests/stores/test_postgres_joined.py::test_a_job_if_and_only_if_it_commits",
    ),
    "P6": (
        "tests/stores/test_sqlite_contention.py::"
        "test_a_lock_that_is_held_for_long_is_waited_for_and_then_named",
        "tests/stores/test_sqlite_vanished.py::test_every_call_says_which_file_is_gone",
    ),
    "P8": ("tests/conformance/test_capacity.py::*",),
    "S1": (
        "tests/proof/test_replay.py::test_a_power_cut_after_any_operation_loses_nothing",
        "tests/proof/test_cut.py::test_what_doctor_says_is_what_the_cut_does",
    ),
    "S2": (
        "tests/stores/test_redis.py::test_nothing_acknowledged_is_lost_when_the_server_is_killed",
        "tests/stores/test_postgres.py::"
        "test_nothing_acknowledged_is_lost_when_the_server_is_killed",
        "tests/cases/test_redis.py::test_workers_and_the_server_are_killed",
        "tests/cases/test_rabbitmq.py::test_workers_and_the_broker_are_killed",
    ),
    "S3": (
        "tests/proof/test_nth.py::test_an_operation_that_fails_gives_no_false_answer",
        "tests/proof/test_replay.py::test_s3_a_failed_sync_costs_nothing_that_was_acknowledged",
        "tests/proof/test_replay.py::test_s3_a_kill_after_a_failed_sync_and_then_a_power_cut",
        "tests/stores/test_sqlite_io_errors.py::"
        "test_three_failures_in_a_row_stop_it_with_a_clear_word",
    ),
    "S4": (
        "tests/proof/test_faults.py::"
        "test_s4_on_a_full_disk_new_work_is_refused_and_all_that_was_accepted_is_settled",
        "tests/proof/test_faults.py::"
        "test_s4_a_limit_on_the_size_of_files_costs_nothing_that_was_accepted",
        "tests/stores/test_sqlite_full_disk.py::test_a_disk_without_room_for_a_file",
    ),
    "S5": (
        "tests/stores/test_sqlite_vanished.py::test_every_call_says_which_file_is_gone",
        "tests/stores/test_sqlite_vanished.py::test_a_file_replaced_under_two_processes",
        "tests/stores/test_sqlite_wrong_files.py::test_a_read_only_folder",
        "tests/stores/test_sqlite_wrong_files.py::test_a_read_only_file",
    ),
    "S6": (
        "tests/proof/test_faults.py::test_s6_a_flipped_bit_is_noticed_and_the_rest_goes_on",
        "tests/stores/test_sqlite_wrong_files.py::test_a_file_cut_short_is_called_damaged",
        "tests/stores/test_sqlite_wrong_files.py::test_a_garbage_log_hurts_nothing_that_was_copied",
    ),
    "S7": (
        "tests/stores/test_sqlite_contention.py::test_four_writers_get_their_share",
        "tests/stores/test_sqlite_contention.py::"
        "test_a_lock_that_is_held_for_long_is_waited_for_and_then_named",
        "tests/stores/test_sqlite_contention.py::"
        "test_a_frozen_process_holds_nobody_up_unless_it_holds_the_lock",
    ),
    "S8": (
        "tests/stores/test_sqlite_log.py::"
        "test_it_grows_while_somebody_reads_and_shrinks_when_that_ends",
        "tests/stores/test_sqlite_log.py::test_our_own_readers_are_short",
    ),
    "S9": (
        "tests/stores/test_redis_places.py::test_a_failover_that_a_sentinel_decides",
        "tests/stores/test_redis_safe.py::test_nothing_is_acknowledged_that_no_replica_has",
        "tests/cases/test_postgres.py::"
        "test_a_standby_is_refused_and_promoted_it_has_the_same_workers",
    ),
    "S11": (
        "tests/stores/test_rabbitmq.py::test_a_broker_that_takes_nothing",
        "tests/stores/test_rabbitmq_records.py::test_a_broker_that_takes_no_messages",
    ),
    "S12": ("tests/conformance/test_purge.py::test_keys_go_with_it",),
    "S13": ("tests/stores/test_sqlite_vanished.py::test_a_file_replaced_under_two_processes",),
    "S14": (
        "tests/stores/test_sqlite_settings.py::"
        "test_a_flawed_library_is_refused_before_any_file_is_made",
        "tests/stores/test_sqlite_settings.py::test_versions_with_the_wal_reset_bug",
        "tests/doctor/test_doctor.py::test_sq3_a_worker_with_an_old_library",
    ),
    "W1": (
        "tests/proof/test_kill.py::test_a_kill_at_any_call_that_writes",
        "tests/proof/test_kill.py::test_three_hundred_kills_of_real_workers_and_producers",
        "tests/cases/test_c01_worker_dies.py::test_c01",
    ),
    "W2": (
        "tests/proof/test_zombie.py::test_w2_a_zombies_verdict_is_refused",
        "tests/cases/test_c07_zombie.py::test_c07",
    ),
    "W3": (
        "tests/engine/test_worker_threads.py::test_a_blocked_loop_is_reported_and_keeps_its_leases",
        "tests/engine/test_supervisor.py::"
        "test_a_blocked_loop_ends_its_process_and_that_job_alone_is_blamed",
    ),
    "W4": (
        "tests/proof/test_faults.py::"
        "test_w4_a_job_that_eats_all_memory_is_buried_and_its_neighbours_end",
        "tests/cases/test_c32_poison.py::test_c32",
        "tests/engine/test_supervisor.py::"
        "test_poison_that_always_runs_alone_starts_exactly_three_times",
        "tests/engine/test_execution.py::test_a_recursion_error_is_recorded",
    ),
    "W5": (
        "tests/engine/test_execution.py::test_a_coroutine_is_cancelled_when_its_time_is_up",
        "tests/engine/test_worker_processes.py::test_a_process_over_its_time_is_killed",
        "tests/engine/test_supervisor.py::"
        "test_a_blocked_loop_ends_its_process_and_that_job_alone_is_blamed",
    ),
    "W6": (
        "tests/engine/test_execution.py::test_whatever_is_raised_is_recorded",
        "tests/engine/test_worker_threads.py::test_whatever_they_raise_is_recorded",
    ),
    "W7": (
        "tests/cases/test_c22_unreachable.py::test_c22",
        "tests/engine/test_worker_keeps.py::test_verdicts_wait_for_a_store_that_is_away",
        "tests/stores/test_sqlite_io_errors.py::test_a_settlement_that_fails_may_be_repeated",
    ),
    "W8": ("tests/cases/test_c34_unknown_task.py::test_c34",),
    "W9": (
        "tests/engine/test_worker_runs.py::test_what_was_claimed_ahead_of_a_slow_job_goes_back",
        "tests/engine/test_worker_stops.py::test_what_was_claimed_ahead_goes_back_at_the_stop",
        "tests/cases/test_c42_cancelled.py::test_c42_claimed_ahead",
    ),
    "C4": (
        "tests/conformance/test_delay.py::test_far_off_moments",
        "tests/conformance/test_delay.py::test_a_moment_in_the_past_is_due",
        "tests/engine/test_app_options.py::test_what_makes_no_sense_is_refused_by_name",
    ),
    "K1": (
        "tests/conformance/test_recover.py::"
        "test_a_clock_that_jumps_ends_no_lease_and_prolongs_none",
    ),
    "N1": (
        "tests/stores/test_redis.py::test_a_silent_line_is_given_up",
        "tests/stores/test_redis.py::test_an_add_whose_answer_was_lost_is_repeated",
        "tests/stores/test_rabbitmq.py::test_an_answer_that_was_lost_is_uncertain",
        "tests/cases/test_postgres.py::test_c24",
    ),
    "N3": (
        "tests/stores/test_redis_tls.py::test_whom_nobody_vouches_for_is_not_trusted",
        "tests/stores/test_rabbitmq_tls.py::test_another_authority_is_refused",
        "tests/cases/test_postgres.py::test_c51",
        "tests/cases/test_redis.py::test_c51",
    ),
    "M1": (
        "tests/proof/test_faults.py::"
        "test_m1_without_file_descriptors_opening_is_refused_and_works_later",
        "tests/proof/test_faults.py::"
        "test_w4_a_job_that_eats_all_memory_is_buried_and_its_neighbours_end",
    ),
    "H1": (
        "tests/cases/test_c09_stop_signal.py::test_c09",
        "tests/engine/test_supervisor.py::test_it_drains_and_ends_in_order",
        "tests/engine/test_supervisor.py::test_an_idle_one_ends_at_once",
        "tests/engine/test_supervisor.py::test_a_second_signal_hurries",
        "tests/engine/test_supervisor.py::test_sighup_replaces_the_processes_gracefully",
        "tests/engine/test_supervisor.py::test_a_signal_during_the_start_is_obeyed",
    ),
    "U1": (
        "tests/proof/test_replay.py::"
        "test_a_power_cut_in_a_migration_leaves_the_old_schema_or_the_new",
        "tests/stores/test_sqlite_migrations.py::"
        "test_a_migration_that_is_killed_leaves_the_old_schema_or_the_new_one",
    ),
    "U3": (
        "tests/stores/test_sqlite_wrong_files.py::"
        "test_a_newer_schema_is_refused_by_both_sides_of_an_upgrade",
    ),
    "U4": (
        "tests/contrib/beside/test_kill.py::test_killed_once",
        "tests/contrib/beside/test_messages.py::test_what_runs",
    ),
    "O1": (
        "tests/cli/test_target.py::test_no_command_creates_a_missing_file",
        "tests/engine/test_supervisor.py::test_what_can_never_start_ends_with_the_reason",
        "tests/engine/test_supervisor.py::test_the_banner_says_how_many_jobs_there_are",
    ),
    "O2": (
        "tests/cases/test_c49_purge.py::test_c49",
        "tests/cli/test_acting.py::test_purge_asks_with_the_count",
        "tests/cli/test_acting.py::test_purge_on_a_yes_and_as_a_dry_run",
    ),
    "O3": (
        "tests/cli/test_saving.py::test_the_copy_is_a_store_of_its_own",
        "tests/stores/test_sqlite_vanished.py::"
        "test_a_log_deleted_before_the_first_commit_is_missed_as_well",
    ),
    "O4": (
        "tests/stores/test_sqlite_places.py::"
        "test_what_may_not_survive_a_power_cut_is_refused_unless_less_is_asked_for",
        "tests/doctor/test_doctor.py::test_sq4_in_memory",
        "tests/doctor/test_doctor.py::test_sq4_on_a_network",
        "tests/doctor/test_doctor.py::test_sq14_a_folder_that_is_copied",
    ),
    "O5": ("tests/stores/test_sqlite_damage.py::test_a_damaged_job_is_buried_and_all_others_run",),
}


def names_in(path: Path) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = {n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, kinds)}
    return {name for name in found if name.startswith("test_")}


def here() -> Counter[str]:
    """How many tests of this folder bear the name of each row."""
    names = [name for path in Path(__file__).parent.glob("test_?_*.py") for name in names_in(path)]
    marks = [re.fullmatch(r"test_([a-z]\d+)_.+", name) for name in names]
    assert all(marks), "each test here begins with the name of its row"
    return Counter(mark[1].upper() for mark in marks if mark)


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    assert ROWS[row]
    for place in ROWS[row]:
        file, _, name = place.partition("::")
        found = names_in(ROOT / file)
        assert name in found or (name == "*" and found), place


def test_every_row_has_a_test_or_a_reason() -> None:
    rows = {f"{kind}{n}" for kind, count in CATALOGUE.items() for n in range(1, count + 1)}
    tested = ROWS.keys() | here().keys()
    assert tested | LATER.keys() == rows
    assert not tested & LATER.keys()
    assert all(LATER.values())
