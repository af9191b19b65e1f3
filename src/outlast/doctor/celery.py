"""The examination of a Celery app: what its own settings lose, when, and which line changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from outlast.doctor.report import Finding, Report, Severity
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Setup", "examine", "findings_of"]

OK, NOTE, WARNING, ERROR = Severity
LOSES = Durability.MEMORY
HOUR = 3600.0
MAX_REDELIVERIES = 20
"""As in ``outlast.contrib.kombu.transport``, which needs kombu."""

VISIBILITY = {"redis": HOUR, "sqs": 1800.0, "pgmq": 1800.0, "gcpubsub": 600.0}
"""Seconds after which these transports hand an unacknowledged message out again, by default."""

FORGETS = {
    "memory": "its messages are in the memory of one process",
    "filesystem": "a message's file is deleted before the task runs, whatever acks_late says",
    "sql": "a message is marked as done before the task runs, whatever acks_late says",
}
"""Transports of Celery's that lose what a killed worker had, by their driver type."""


class Setup(Struct, frozen=True, kw_only=True):
    """What an app says: its settings, its tasks by name, and what kind of server it talks to."""

    conf: Any
    tasks: Mapping[str, Any]
    driver: str
    queues: Mapping[str, Any]

    @property
    def options(self) -> Mapping[str, Any]:
        return self.conf.broker_transport_options or {}

    @property
    def visibility(self) -> float | None:
        """Seconds until an unacknowledged message is handed out again, where time decides that."""
        default = VISIBILITY.get(self.driver)
        return None if default is None else float(self.options.get("visibility_timeout", default))

    @property
    def redeliveries(self) -> int | None:
        """How often our own transport gives a message out again, before it is buried."""
        if self.driver != "outlast":
            return None
        limit: int | None = self.options.get("max_redeliveries", MAX_REDELIVERIES)
        return limit

    def late(self) -> list[Any]:
        return [task for task in self.tasks.values() if task.acks_late]


def examine(app: Any, *, required: Durability | None = None) -> Report:
    """Read an app's settings, then look at its server. Nothing is changed, and no task is sent.

    ``required`` is the class that must hold, else power. A server that can't be reached is a
    report that says so, with what the settings alone tell.
    """
    from outlast.doctor.celery_server import look_at

    app.loader.import_default_modules()
    app.finalize()
    own = {name: app.tasks[name] for name in sorted(app.tasks) if not name.startswith("celery.")}
    wanted = Durability.POWER if required is None else required
    with app.connection_for_read() as connection:
        setup = Setup(
            conf=app.conf,
            tasks=own,
            driver=connection.transport.driver_type,
            queues=dict(app.amqp.queues),
        )
        seen, reached = look_at(setup, connection)
        url = str(connection.as_uri())
    findings = (*findings_of(setup), *seen)
    return Report(url=url, required=wanted, findings=findings, reached=reached)


def findings_of(setup: Setup) -> list[Finding]:
    """What the settings mean, in the order of a message's life."""
    checks: Sequence[Callable[[Setup], Finding]] = (
        _eager, _transport, _confirms, _queues, _early, _worker_lost, _time_limit, _visibility,
        _far_eta, _eta_in_memory, _prefetch, _serializers, _results, _unknown, _connection_lost,
        _shutdown, _revokes,
    )  # fmt: skip
    return [check(setup) for check in checks]


def _fine(id: str, read: str, durability: Durability | None = None) -> Finding:
    return Finding(id=id, severity=OK, read=read, durability=durability)


def _eager(setup: Setup) -> Finding:
    if setup.conf.task_always_eager:
        return Finding(
            id="CE1", severity=ERROR, read="task_always_eager = True", durability=LOSES,
            means="nothing is queued: delay() runs the task in the caller, who dies with it",
            remedy="app.conf.task_always_eager = False, but in tests",
        )  # fmt: skip
    return _fine("CE1", "task_always_eager = False")


def _transport(setup: Setup) -> Finding:
    driver = setup.driver
    if driver in FORGETS:
        return Finding(
            id="CE2", severity=ERROR, read=f"transport {driver}", durability=LOSES,
            means=f"a killed worker loses its tasks: {FORGETS[driver]}",
            remedy="another broker_url: RabbitMQ with quorum queues, Redis, or outlast+sqlite:///…",
        )  # fmt: skip
    if driver == "redis":
        return Finding(
            id="CE2", severity=WARNING, read="transport redis", durability=LOSES,
            means="a worker killed between taking a message (BRPOP) and noting it (HSET unacked) "
            "loses it: a moment, at each message, that no setting closes",
            remedy="RabbitMQ, outlast+sqlite:///…, or outlast workers on these queues, which take "
            "and note in one step",
        )  # fmt: skip
    if driver == "outlast":
        # Its store is opened for nothing less, or not at all, unless the URL asks for less.
        asked = "durability=" in str(setup.conf.broker_url)
        return _fine("CE2", "transport outlast", None if asked else Durability.POWER)
    if driver == "amqp":
        return _fine("CE2", "transport amqp")
    return Finding(
        id="CE2", severity=NOTE, read=f"transport {driver}",
        means="outlast doesn't know how this one treats messages when a worker dies",
        remedy="kill a worker in the middle of a task with acks_late, and count",
    )  # fmt: skip


def _confirms(setup: Setup) -> Finding:
    if setup.driver != "amqp":
        return _fine("CE3", "delay() waits for the server's answer")
    if setup.options.get("confirm_publish"):
        return _fine("CE3", "confirm_publish = True")
    return Finding(
        id="CE3", severity=ERROR, read="confirm_publish is not set", durability=LOSES,
        means="delay() returns when the message is in a socket's buffer: a connection or a server "
        "that breaks at that moment loses it without an error",
        remedy='app.conf.broker_transport_options = {"confirm_publish": True}',
    )  # fmt: skip


def _queues(setup: Setup) -> Finding:
    conf, queues = setup.conf, setup.queues
    fleeting = [name for name, queue in queues.items() if not queue.durable]
    if str(conf.task_default_delivery_mode) in ("1", "transient") or fleeting:
        shown = f"queues {', '.join(fleeting)} with durable=False" if fleeting else "transient"
        return Finding(
            id="CE4", severity=ERROR, read=f"{shown}, task_default_delivery_mode"
            f" {conf.task_default_delivery_mode}", durability=LOSES,
            means="the messages die when the server restarts",
            remedy='app.conf.task_default_delivery_mode = "persistent", and durable=True in '
            "task_queues",
        )  # fmt: skip
    if setup.driver != "amqp":
        return _fine("CE4", f"persistent messages in {', '.join(queues)}")
    classic = [
        name
        for name, queue in queues.items()
        if (queue.queue_arguments or {}).get("x-queue-type", "classic") == "classic"
    ]
    if classic:
        return Finding(
            id="CE4", severity=WARNING, read=f"classic queues: {', '.join(classic)}",
            durability=Durability.PROCESS,
            means="a power cut can lose what was confirmed last, the loss of a node all of it",
            remedy='app.conf.task_default_queue_type = "quorum", under new names: a queue keeps '
            "the type it was made with",
        )  # fmt: skip
    return _fine("CE4", f"quorum queues: {', '.join(queues)}", Durability.POWER)


def _early(setup: Setup) -> Finding:
    early = [name for name, task in setup.tasks.items() if not task.acks_late]
    if not early and (setup.tasks or setup.conf.task_acks_late):
        return _fine("CE5", "acks_late for every task")
    return Finding(
        id="CE5", severity=ERROR, read=f"acks_late is off for {_listed(early)}", durability=LOSES,
        means="the message is acknowledged before the task runs: a worker that is killed, runs "
        "out of memory or loses power in the middle takes the task with it",
        remedy="app.conf.task_acks_late = True (or @app.task(acks_late=True)), for tasks that may "
        "be run again",
    )  # fmt: skip


def _worker_lost(setup: Setup) -> Finding:
    late = setup.late()
    if not late:
        return Finding(
            id="CE6", severity=NOTE, read="task_reject_on_worker_lost counts with acks_late only"
        )
    lost = [
        task.name
        for task in late
        if not task.reject_on_worker_lost and not getattr(task, "retry_on_worker_lost", False)
    ]
    if lost:
        return Finding(
            id="CE6", severity=ERROR, read=f"reject_on_worker_lost is off for {_listed(lost)}",
            durability=LOSES,
            means="when the pool's child is killed (OOM killer, segfault), its task is "
            "acknowledged as failed, acks_late or not",
            remedy="app.conf.task_reject_on_worker_lost = True",
        )  # fmt: skip
    endless = [task.name for task in late if not getattr(task, "retry_on_worker_lost", False)]
    if endless and setup.redeliveries is not None:
        return _fine(
            "CE6", f"a task that kills its worker is buried after {setup.redeliveries} times"
        )
    if endless:
        return Finding(
            id="CE6", severity=NOTE, read=f"reject_on_worker_lost for {_listed(endless)}",
            means="a task that kills its worker each time is handed out again for ever",
            remedy="app.conf.task_retry_on_worker_lost = True (Celery 5.7): it counts as a retry",
        )  # fmt: skip
    return _fine("CE6", "a lost child's task is retried, max_retries times")


def _time_limit(setup: Setup) -> Finding:
    failed = [
        task.name
        for task in setup.late()
        if getattr(task, "acks_on_timeout", True) and task.time_limit
    ]
    if not failed:
        return _fine("CE7", "no task is acknowledged because its time was up")
    return Finding(
        id="CE7", severity=NOTE, read=f"hard time limits for {_listed(failed)}",
        means="a task that is killed at its time limit counts as failed and is not tried again",
        remedy="a soft_time_limit below it, with autoretry_for=(SoftTimeLimitExceeded,); or "
        "app.conf.task_acks_on_timeout = False (Celery 5.7)",
    )  # fmt: skip


def _visibility(setup: Setup) -> Finding:
    seconds = setup.visibility
    if seconds is None:
        return _fine("CE8", "no visibility timeout: the server knows when a worker is gone")
    shown = f"visibility_timeout {seconds:g} s"
    limit = setup.conf.task_time_limit
    long = [task.name for task in setup.late() if (task.time_limit or limit or 1e12) >= seconds]
    if long:
        return Finding(
            id="CE8", severity=WARNING, read=f"{shown}, and no time limit below it for"
            f" {_listed(long)}",
            means=f"whoever of these runs longer is run by a second worker after {seconds:g} s, "
            "while the first goes on; and a third",
            remedy=f"app.conf.task_time_limit below {seconds:g}, or a longer visibility_timeout "
            "in broker_transport_options, the same in every app on this server",
        )  # fmt: skip
    if seconds > 6 * HOUR:
        return Finding(
            id="CE8", severity=WARNING, read=shown,
            means="what a killed worker had taken comes back only after that time",
            remedy="a visibility_timeout a little above the longest task",
        )  # fmt: skip
    return _fine("CE8", shown)


def _far_eta(setup: Setup) -> Finding:
    seconds = setup.visibility
    if seconds is None:
        return _fine("CE9", "an eta may be any time ahead")
    retried = [
        task.name
        for task in setup.tasks.values()
        if task.max_retries != 0 and (task.default_retry_delay or 0) >= seconds
    ]
    also = f"; retried later than that: {_listed(retried)}" if retried else ""
    return Finding(
        id="CE9", severity=WARNING, read=f"visibility_timeout {seconds:g} s{also}",
        means=f"a task with an eta, countdown or retry further ahead than {seconds:g} s is handed "
        "to one more worker each time that has passed, and all of them run it",
        remedy="visibility_timeout above the furthest eta; or keep such tasks in a table, and "
        "send them when they are due",
    )  # fmt: skip


def _eta_in_memory(setup: Setup) -> Finding:
    limit = getattr(setup.conf, "worker_eta_task_limit", None)
    if setup.driver == "outlast":
        return _fine("CE10", "tasks with an eta wait in the store")
    if limit:
        return _fine("CE10", f"worker_eta_task_limit = {limit}")
    return Finding(
        id="CE10", severity=WARNING, read="worker_eta_task_limit is not set",
        means="workers take every task with an eta into their memory, however many there are, "
        "until the system kills them; and so their successors",
        remedy="app.conf.worker_eta_task_limit = 1000 (Celery 5.6), above what is due at a time",
    )  # fmt: skip


def _prefetch(setup: Setup) -> Finding:
    ahead = setup.conf.worker_prefetch_multiplier
    if ahead == 0:
        return Finding(
            id="CE11", severity=WARNING, read="worker_prefetch_multiplier = 0",
            means="the first worker takes all there is into its memory; others have nothing to do",
            remedy="app.conf.worker_prefetch_multiplier = 1",
        )  # fmt: skip
    if ahead > 1 and setup.late():
        return Finding(
            id="CE11", severity=NOTE, read=f"worker_prefetch_multiplier = {ahead}",
            means=f"behind a long task up to {ahead} others wait, while other workers are idle"
            + ("" if setup.visibility is None else "; their visibility timeout runs meanwhile"),
            remedy="app.conf.worker_prefetch_multiplier = 1",
        )  # fmt: skip
    return _fine("CE11", f"worker_prefetch_multiplier = {ahead}")


def _serializers(setup: Setup) -> Finding:
    conf = setup.conf
    accepted = [*conf.accept_content, *(conf.result_accept_content or ())]
    used = [conf.task_serializer, conf.result_serializer]
    code = [name for name in accepted if any(word in name for word in ("pickle", "python", "yaml"))]
    if code:
        return Finding(
            id="CE12", severity=WARNING, read=f"accept_content has {', '.join(sorted(set(code)))}",
            means="whoever can write to the server runs any code in your workers",
            remedy='app.conf.accept_content = ["json"], once task_serializer = "json" everywhere',
        )  # fmt: skip
    refused = [
        name for name in used if name not in accepted and f"application/{name}" not in accepted
    ]
    if refused:
        return Finding(
            id="CE12", severity=ERROR, durability=LOSES,
            read=f"written as {', '.join(refused)}, accepted: {', '.join(accepted)}",
            means="workers discard what they don't accept",
            remedy="name the same in task_serializer, result_serializer and accept_content",
        )  # fmt: skip
    return _fine("CE12", f"written as {used[0]}, accepted: {', '.join(accepted)}")


def _results(setup: Setup) -> Finding:
    conf = setup.conf
    where = str(conf.result_backend or "")
    kept = conf.result_expires
    seconds = kept.total_seconds() if hasattr(kept, "total_seconds") else kept
    if not where or where.startswith("disabled"):
        return Finding(
            id="CE13", severity=WARNING, read="no result_backend",
            means="that a task failed stands in a worker's log and nowhere else",
            remedy="app.conf.result_backend, and task_ignore_result for what needs none",
        )  # fmt: skip
    if where.startswith(("rpc", "cache", "memory")):
        return Finding(
            id="CE13", severity=WARNING, read=f"results in {where.partition(':')[0]}",
            means="results are gone with the process that asked, or the server's memory",
            remedy="a result_backend on a disk; chords and groups need one",
        )  # fmt: skip
    if seconds:
        return Finding(
            id="CE13", severity=NOTE, read=f"result_expires {seconds:g} s",
            means="a chord that takes longer never runs its body; what failed is forgotten then",
            remedy="app.conf.result_expires above the longest workflow",
        )  # fmt: skip
    return _fine("CE13", "results don't expire")


def _unknown(setup: Setup) -> Finding:
    if setup.driver == "outlast":
        return _fine("CE14", "what a worker doesn't know is kept: outlast jobs --state dead")
    return Finding(
        id="CE14", severity=WARNING, read=f"{len(setup.tasks)} tasks are registered here",
        means="a worker without the code of a task (a deploy in progress) discards its messages",
        remedy="deploy workers before senders; outlast workers leave what they don't know",
    )  # fmt: skip


def _connection_lost(setup: Setup) -> Finding:
    if not setup.late() or setup.conf.worker_cancel_long_running_tasks_on_connection_loss:
        return _fine("CE15", "nothing runs on after its connection was lost")
    if setup.driver == "outlast":
        return _fine("CE15", "what runs on after its connection was lost is handed out to nobody")
    return Finding(
        id="CE15",
        severity=NOTE,
        read="worker_cancel_long_running_tasks_on_connection_loss = False",
        means="when a worker loses its connection, its late tasks run on and are handed out again",
        remedy="app.conf.worker_cancel_long_running_tasks_on_connection_loss = True",
    )


def _shutdown(setup: Setup) -> Finding:
    seconds = getattr(setup.conf, "worker_soft_shutdown_timeout", 0)
    if seconds:
        return _fine("CE16", f"worker_soft_shutdown_timeout = {seconds:g}")
    return Finding(
        id="CE16", severity=NOTE, read="worker_soft_shutdown_timeout is not set",
        means="a second signal, or the end of your system's patience, kills what runs: with "
        "early acknowledgement it is lost, with late it runs again"
        + ("" if setup.visibility is None else " when its visibility timeout is over"),
        remedy="app.conf.worker_soft_shutdown_timeout = 10 (Celery 5.5), and a stop timeout of "
        "your service above the longest task",
    )  # fmt: skip


def _revokes(setup: Setup) -> Finding:
    if setup.conf.worker_state_db:
        return _fine("CE17", "worker_state_db is set")
    return Finding(
        id="CE17", severity=NOTE, read="worker_state_db is not set",
        means="what was revoked runs after all, once all workers have been restarted",
        remedy="app.conf.worker_state_db, or --statedb, a file for each worker",
    )  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "tasks as they are registered"
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
