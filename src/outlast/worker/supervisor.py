"""Keeps a number of worker processes running, and says how each of them died.

It imports as little as it can: it lives as long as the service does, and holds nothing that could
break. The processes get their options, and later ``go``, ``stop`` and ``hurry``, as lines on their
standard input; what they have to say comes as JSON lines on a pipe of its own. When the supervisor
dies, the processes see the end of their input, drain and end.

A process that has opened its store says ``ready`` and waits for ``go``. In between the supervisor
enters itself in the process's lifeline, so that everybody on the host waits for its word about a
death, and no signal or exit code is ever missed.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from outlast.lifeline import SupervisorLock, adopt, write_cause
from outlast.worker.options import EXIT_RELOAD, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["launch", "supervise"]

log = logging.getLogger(__name__)

BACKOFF = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0)
"""Seconds before a process that died is replaced, by how many died in a row."""
HEALTHY = 10.0
"""A process that lived for so long ends the row."""
PATIENCE = 4.5
"""After the grace time, what has not ended by itself is killed so many seconds later.

With the default grace that is just before others would kill it, who don't say that it was to end.
"""
LAST_WORDS = 1.0
"""Seconds that what a process said before its end is waited for."""
OPTIONS = "OUTLAST_WORKER_OPTIONS"


class Event(NamedTuple):
    """Something the supervisor's one loop is told by its threads and signal handlers."""

    kind: str
    child: Child | None = None
    value: Any = None


class Child:
    """One worker process, and what it told of itself."""

    def __init__(self, process: subprocess.Popen[bytes], slot: int) -> None:
        self.process = process
        self.slot = slot
        self.started_at = time.monotonic()
        self.ready: dict[str, Any] | None = None
        self.refusal: dict[str, Any] | None = None
        self.retiring = False
        self.kill_at: float | None = None

    def send(self, word: str) -> None:
        """Tell it something; one that is gone won't listen."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(f"{word}\n".encode())
            self.process.stdin.flush()
        except (OSError, ValueError):  # the pipe broke, or was closed after its death
            log.debug("worker process %d is gone already", self.process.pid)


def supervise(
    options: WorkerOptions, announce: Callable[[dict[str, Any]], None] | None = None
) -> int:
    """Run worker processes until SIGTERM or SIGINT; the exit code: 0 if that was in order.

    A second signal ends the grace time. SIGHUP replaces the processes, gracefully. ``announce`` is
    given what the first process that is ready says of itself: ``store`` (URL), ``durability``,
    ``queues``, ``tasks``, ``pid``, ``concurrency``. If no process can start, because the app or the
    store can't be used, the reason is logged and the exit code is not 0.

    Call it in the main thread.
    """
    return _Supervisor(options, announce or _nothing).run()


def launch(options: WorkerOptions) -> None:
    """Become a supervisor: replaces this program by a small one that calls :func:`supervise`.

    On Windows, where that can't be done, it runs beside it. Does not return.
    """
    os.environ[OPTIONS] = json.dumps(options._asdict())
    command = [sys.executable, "-m", "outlast.worker.supervisor"]
    sys.stdout.flush()
    sys.stderr.flush()
    if sys.platform == "win32":
        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)


class _Supervisor:
    def __init__(self, options: WorkerOptions, announce: Callable[[dict[str, Any]], None]) -> None:
        self._options = options
        self._announce = announce
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._children: set[Child] = set()
        self._deaths = [0] * options.processes
        self._due: dict[int, float] = {}
        self._lock: SupervisorLock | None = None
        self._announced = False
        self._stops = 0
        self._exit_code = 0

    def run(self) -> int:
        before = self._install_handlers()
        unheard = _wake_on_signals(lambda: self._events.put(Event("woken")))
        try:
            for slot in range(self._options.processes):
                self._start(slot)
            while self._children or self._due:
                self._wait()
            return self._exit_code
        finally:
            unheard()
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._lock is not None:
                self._lock.release()

    def _install_handlers(self) -> dict[int, Any]:
        def handle(number: int, frame: FrameType | None) -> None:
            self._events.put(Event("signal", None, number))

        names = ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")
        numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        return {number: signal.signal(number, handle) for number in numbers}

    def _wait(self) -> None:
        """Handle one event, or whatever became due meanwhile."""
        now = time.monotonic()
        kills = [child.kill_at for child in self._children if child.kill_at is not None]
        moments = [*self._due.values(), *kills]
        if sys.platform == "win32":
            moments.append(now + 1.0)  # there, nothing wakes it
        try:
            event = self._events.get(timeout=max(0.0, min(moments) - now) if moments else None)
        except queue.Empty:
            pass  # something is due, or it was a look at the clock
        else:
            self._handle(event)
        now = time.monotonic()
        for slot in [slot for slot, moment in self._due.items() if moment <= now]:
            del self._due[slot]
            self._start(slot)
        for child in self._children:
            if child.kill_at is not None and now >= child.kill_at:
                self._kill(child)

    def _handle(self, event: Event) -> None:
        if event.kind == "signal":
            self._signalled(event.value)
        elif event.child is not None and event.kind == "said":
            self._said(event.child, event.value)
        elif event.child is not None:
            self._ended(event.child, event.value)

    def _signalled(self, number: int) -> None:
        if number == getattr(signal, "SIGHUP", None) and not self._stops:
            log.info("replacing the worker processes")
            for child in [child for child in self._children if not child.retiring]:
                child.retiring = True
                self._end(child, "stop")
                self._start(child.slot)
        else:
            self._stop()

    def _stop(self, told: bool = True) -> None:
        self._stops += 1
        self._due.clear()
        if self._stops == 1 and told:
            log.info(
                "stopping: what runs may end within %g s, and then is given back; a second signal"
                " gives it back at once",
                self._options.grace,
            )
        elif told:
            log.info("stopping at once")
        for child in self._children:
            self._end(child, "stop" if self._stops == 1 else "hurry")

    def _end(self, child: Child, word: str) -> None:
        child.send(word)
        grace = self._options.grace if word == "stop" else 0.0
        child.kill_at = time.monotonic() + grace + PATIENCE

    def _kill(self, child: Child) -> None:
        child.kill_at = None
        log.error("worker process %d does not end; killed", child.process.pid)
        self._write_cause(child, None, None, "killed while stopping", blame=False)
        child.process.kill()

    def _start(self, slot: int) -> None:
        try:
            process, messages = _spawn()
        except OSError as error:
            # No memory, or too many processes or files: the others work on, and it may pass.
            pause = self._postpone(slot)
            log.error("no worker process can be started (%s); next try in %.1f s", error, pause)
            return
        child = Child(process, slot)
        self._children.add(child)
        listening = threading.Thread(target=self._listen, args=(child, messages), daemon=True)
        ending = threading.Thread(target=self._await_end, args=(child, listening), daemon=True)
        listening.start()
        ending.start()
        child.send(json.dumps(self._options._asdict()))
        if self._stops:
            self._end(child, "stop")

    def _listen(self, child: Child, messages: int) -> None:
        with open(messages, "rb") as lines:
            for line in lines:
                try:
                    self._events.put(Event("said", child, json.loads(line)))
                except ValueError:
                    log.warning("worker process %d said: %.200r", child.process.pid, line)

    def _await_end(self, child: Child, listening: threading.Thread) -> None:
        code = child.process.wait()
        # What it said comes first, why it can't start above all. A process of its own may hold the
        # other end for as long as it likes.
        listening.join(LAST_WORDS)
        self._events.put(Event("ended", child, code))

    def _said(self, child: Child, message: dict[str, Any]) -> None:
        if message["event"] == "refused":
            child.refusal = message
            log.error("%s", message["message"])
            return
        child.ready = message
        if message["lifelines"] is not None:
            try:
                if self._lock is None:
                    self._lock = SupervisorLock(message["lifelines"], f"supervisor-{message['id']}")
                adopt(message["lifeline"], self._lock)
            except OSError as error:
                # A full disk, or no folder any more. Its death is found out all the same.
                pid = child.process.pid
                log.warning("%s; how worker process %d ends will not be told", error, pid)
        child.send("go")
        if not self._announced:
            self._announced = True
            # A file that is gone by the time of the next start was not meant to be made anew.
            self._options = self._options._replace(create=False)
            self._announce(message)
            for line in message["warnings"]:
                log.warning("%s", line)

    def _ended(self, child: Child, code: int) -> None:
        self._children.discard(child)
        if child.process.stdin is not None:
            try:
                child.process.stdin.close()
            except OSError:
                pass  # its end was broken off with the process
        number, exit_code = (-code, None) if code < 0 else (None, code)
        self._write_cause(child, number, exit_code, "")
        if self._stops or child.retiring:
            return
        refusal = child.refusal
        if refusal is not None and refusal["final"] and not self._announced:
            # It would fail in the same way again and again.
            self._exit_code = refusal["code"]
            self._stop(told=False)
            return
        slot = child.slot
        if code == EXIT_RELOAD or time.monotonic() - child.started_at >= HEALTHY:
            self._deaths[slot] = 0
        pause = self._postpone(slot, fault=code != EXIT_RELOAD)
        how = f"signal {number}" if number else f"exit code {exit_code}"
        level = logging.INFO if code in (0, EXIT_RELOAD) else logging.ERROR
        log.log(level, "worker process %d ended (%s); the next one starts in %.1f s",
                child.process.pid, how, pause)  # fmt: skip

    def _postpone(self, slot: int, *, fault: bool = True) -> float:
        """Start that one later, the later the oftener it failed; in how many seconds."""
        pause = BACKOFF[min(self._deaths[slot], len(BACKOFF) - 1)]
        self._deaths[slot] += fault
        self._due[slot] = time.monotonic() + pause
        return pause

    def _write_cause(
        self, child: Child, number: int | None, code: int | None, text: str, blame: bool = True
    ) -> None:
        path = None if child.ready is None else child.ready["lifeline"]
        if path is not None:
            write_cause(path, signal=number, exit_code=code, message=text, blame=blame)


def _wake_on_signals(wake: Callable[[], object]) -> Callable[[], None]:
    """Have every signal wake the main thread, the only one that runs handlers; how to end that.

    The system gives a signal to any thread, and one that waits for an event without an end hears
    of it only if it came to that very thread, and once it was asleep. After SIGCONT it is another
    as often as not: the signal was pending, and all threads wake up together.
    """
    if sys.platform == "win32":
        return lambda: None  # the loop there looks every second
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def pass_on() -> None:
        with open(reading, "rb", buffering=0) as numbers:
            while numbers.read(64):
                wake()

    threading.Thread(target=pass_on, daemon=True).start()

    def end() -> None:
        signal.set_wakeup_fd(before)
        os.close(writing)

    return end


def _spawn() -> tuple[subprocess.Popen[bytes], int]:
    """A new worker process, and where its messages can be read."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "outlast.worker.child"]
    try:
        if sys.platform == "win32":
            import msvcrt

            handle = msvcrt.get_osfhandle(writing)
            os.set_handle_inheritable(handle, True)
            process = subprocess.Popen(
                [*command, str(handle)],
                stdin=subprocess.PIPE,
                startupinfo=subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]}),
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
            )
        else:
            # A group of its own: Ctrl-C is for the supervisor, which passes it on in order.
            process = subprocess.Popen(
                [*command, str(writing)],
                stdin=subprocess.PIPE,
                pass_fds=(writing,),
                process_group=0,
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


def _nothing(message: dict[str, Any]) -> None:
    """Nobody wants to be told."""


def _banner(message: dict[str, Any]) -> None:
    queues, jobs = message["queues"], message["jobs"]
    if jobs is not None:
        counts = ("1 job" if n == 1 else f"{n:,} jobs" for n in jobs)
        queues = [f"{name} ({count})" for name, count in zip(queues, counts, strict=True)]
    print(
        f"outlast worker: {message['store']} (durability: {message['durability']})\n"
        f"  queues: {', '.join(queues)}\n"
        f"  tasks: {', '.join(message['tasks']) or 'none'}",
        file=sys.stderr,
        flush=True,
    )


def _main() -> int:
    given = json.loads(os.environ.pop(OPTIONS))
    options = WorkerOptions(**{**given, "queues": tuple(given["queues"])})
    level = options.log_level.upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    code = supervise(options, _banner)
    # Python looks for garbage once more before it ends, which took longer than all that this does
    # from the end of the last process on. The system has it all back in a moment.
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(_main())
