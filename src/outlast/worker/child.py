"""The main program of a worker process that a supervisor has started."""

from __future__ import annotations

import asyncio
import atexit
import gc
import importlib
import json
import logging
import os
import signal
import sys
import threading
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from outlast.clock import SystemClock
from outlast.errors import ConfigurationError, OutlastError, StoreFull
from outlast.worker.options import (
    EXIT_BLOCKED,
    EXIT_BROKEN,
    EXIT_REFUSED,
    EXIT_RELOAD,
    WorkerOptions,
)
from outlast.worker.reload import Files
from outlast.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from outlast.execution import Runnable
    from outlast.store import Store

__all__ = ["WorkerApp", "leave", "load", "main", "spare_the_collector"]

log = logging.getLogger(__name__)

CHECK_FILES = 0.5
YOUNG = 5000
"""New objects after which garbage is looked for. A hundred jobs at work are a thousand, none of it
garbage; with Python's own number of 700 it was looked for about as often as jobs were started."""


RELAY = 30.0
"""Seconds before an outbox is looked into again with which something is wrong."""


class WorkerApp(Protocol):
    """What a loader finds: tasks, and where their jobs are."""

    @property
    def tasks(self) -> Mapping[str, Runnable]: ...

    def open_store(self, *, create: bool | None = None) -> Store:
        """A store, not open yet."""
        ...

    def opened_on(self, store: Store) -> AbstractAsyncContextManager[object]:
        """The app itself open in this loop, since tasks enqueue other tasks; on that store."""
        ...

    def relay(self, url: str) -> Coroutine[Any, Any, None]:
        """Move jobs on from an outbox, until cancelled."""
        ...


def load(options: WorkerOptions) -> Any:
    """The object that ``module:attribute`` names. Raises ``ConfigurationError``."""
    name, _, path = options.target.partition(":")
    if options.url is not None:
        raise ConfigurationError("this loader takes the app's own URL; use another with url=")
    try:
        found: Any = importlib.import_module(name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"no app at {options.target!r}: {error}") from error
    return found


async def _live(store: Store, queues: Sequence[str]) -> list[int] | None:
    """How many jobs of each queue have not ended; None if that can't be told.

    Whoever named the wrong store sees it by that.
    """
    try:
        return [(await store.depth(queue)).live for queue in queues]
    except OutlastError as error:
        log.debug("the jobs of the queues can't be counted: %s", error)
        return None


def spare_the_collector() -> None:
    """What is imported by now will never be garbage, and what jobs are made of rarely is.

    A program that has chosen a higher threshold, or switched the collector off, keeps that.
    """
    gc.collect()
    gc.freeze()
    first, *others = gc.get_threshold()
    if 0 < first < YOUNG:
        gc.set_threshold(YOUNG, *others)


class _Child:
    """One worker process: its options, its way to the supervisor, its worker."""

    def __init__(self, options: WorkerOptions, control: int, messages: int) -> None:
        self._options = options
        self._control = control
        self._messages = messages
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._go: asyncio.Future[None] | None = None
        self._files = Files() if options.reload else None
        self._changed = False
        self._stops = 0
        self._at_work = False
        self._open_app: Callable[[Store], Awaitable[object]] | None = None

    def run(self) -> int:
        """The exit code."""
        try:
            module, _, name = self._options.loader.partition(":")
            app: WorkerApp = getattr(importlib.import_module(module), name)(self._options)
            spare_the_collector()
            with asyncio.Runner(loop_factory=_loop_factory(self._options.loop)) as runner:
                try:
                    runner.run(self._work(app))
                except BaseException as error:
                    if self._at_work and self._worker is not None:
                        # Before the runner cancels what is left, as if that had come from us.
                        self._worker.broken(f"the event loop ended ({error!r})")
                    raise
        except Exception as error:
            return self._refuse(error)
        code = EXIT_RELOAD if self._changed else 0
        if self._worker is not None and self._worker.stuck:
            # A thread that never ends would keep the interpreter from ending.
            logging.shutdown()
            os._exit(code)
        return code

    async def _work(self, app: WorkerApp) -> None:
        options = self._options
        self._loop = asyncio.get_running_loop()
        self._go = self._loop.create_future()
        self._worker = Worker(
            lambda: app.open_store(create=options.create),
            app.tasks,
            queues=options.queues,
            concurrency=options.concurrency,
            lease=options.lease,
            grace=options.grace,
            kill=lambda: os._exit(EXIT_BLOCKED),
            quit=lambda: os._exit(EXIT_BROKEN),
            before_claims=self._report,
            home=options.target.partition(":")[0],
            hooks=getattr(app, "hooks", ()),
        )
        _on_signals(self._loop, self._stop)
        threading.Thread(target=self._obey, daemon=True).start()
        if self._files is not None:
            threading.Thread(target=self._watch_files, daemon=True).start()
        async with AsyncExitStack() as stack:
            # Only after the worker's store, which may refuse to create a missing file.
            self._open_app = lambda store: stack.enter_async_context(app.opened_on(store))
            relaying = self._loop.create_task(self._relay(app))
            self._at_work = True
            try:
                await self._worker.run()
            finally:
                self._at_work = False
                relaying.cancel()
                await asyncio.wait((relaying,))

    async def _relay(self, app: WorkerApp) -> None:
        """The outbox, if there is one: whatever is wrong with it, the work goes on."""
        url = self._options.outbox
        if url is None or self._go is None:
            return
        await self._go
        while True:
            try:
                await app.relay(url)
            except OutlastError as error:
                log.error("the outbox is not moved on: %s; trying again in %g s", error, RELAY)
            await SystemClock().sleep(RELAY)

    async def _report(self, worker: Worker) -> None:
        """Say that the store is open, and wait for the word to begin."""
        store, marks = worker.store, worker.marks
        assert self._open_app is not None
        assert store is not None
        await self._open_app(store)
        assert self._go is not None
        warnings = await self._check(store)
        self._say(
            event="ready",
            warnings=warnings,
            id=worker.id,
            pid=os.getpid(),
            store=store.url,
            durability=str(store.durability),
            queues=worker.queues,
            jobs=await _live(store, worker.queues),
            tasks=worker.tasks,
            concurrency=worker.concurrency,
            lifelines=None if marks is None else str(store.lifelines),
            lifeline=None if marks is None else marks.path,
        )
        await self._go

    async def _check(self, store: Store) -> list[str]:
        """What weakens the store; raises what forbids to work on it."""
        module, _, name = self._options.check.partition(":")
        if not module:
            return []
        check: Callable[[Store], Awaitable[Sequence[str]]]
        check = getattr(importlib.import_module(module), name)
        return list(await check(store))

    def _obey(self) -> None:
        """Read the supervisor's words until it is gone, which means stop. In a thread."""
        assert self._loop is not None
        with open(self._control, "rb", buffering=0) as words:
            for word in words:
                self._post(self._hear, word.strip())
        self._post(self._hear, b"stop")

    def _hear(self, word: bytes) -> None:
        if word in (b"stop", b"hurry"):
            self._stop()
        if word == b"hurry" and self._stops == 1:
            self._stop()
        if self._go is not None and not self._go.done():
            self._go.set_result(None)

    def _stop(self) -> None:
        self._stops += 1
        if self._worker is not None:
            self._worker.stop()

    def _watch_files(self) -> None:
        assert self._files is not None
        self._changed = self._files.wait_for_change(CHECK_FILES)
        log.info("%s changed; starting anew", self._files.changed)
        self._post(self._hear, b"stop")

    def _post(self, call: Callable[..., object], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.debug("the event loop has ended already")

    def _refuse(self, error: Exception) -> int:
        """Say why there is no worker. While files are watched, wait for one to be corrected."""
        known = isinstance(error, OutlastError) or hasattr(error, "format_message")
        text = getattr(error, "format_message", lambda: str(error))()
        message = text if known else f"{type(error).__name__}: {text}"
        if not known:
            log.error("this worker process ends", exc_info=error)
        code = getattr(error, "exit_code", 2 if isinstance(error, ConfigurationError) else 4)
        # Room on a disk comes back without anybody touching the program.
        final = self._files is None and not isinstance(error, StoreFull)
        self._say(event="refused", message=message, final=final, code=code)
        if self._files is not None and not self._stops:
            self._files.add_culprits(error)
            self._files.wait_for_change(CHECK_FILES)
            return EXIT_RELOAD
        return EXIT_REFUSED

    def _say(self, **message: Any) -> None:
        try:
            os.write(self._messages, json.dumps(message).encode() + b"\n")
        except OSError as error:
            log.debug("the supervisor is gone: %s", error)


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "asyncio":
        return asyncio.new_event_loop
    try:
        module = importlib.import_module(name)
    except ImportError:
        raise ConfigurationError(f"loop {name!r} is not installed; use asyncio") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = module.new_event_loop
    return factory


def _on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """SIGTERM and SIGINT stop, in any event loop; SIGHUP is the supervisor's business."""
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
        except RuntimeError:  # this loop can't, as on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def main() -> int:
    """Take the way to the supervisor from where it was put, out of the reach of the tasks."""
    messages = int(sys.argv[1])
    if sys.platform == "win32":
        import msvcrt

        messages = msvcrt.open_osfhandle(messages, os.O_WRONLY)
    os.set_inheritable(messages, False)
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    given = json.loads(_first_line(control))
    options = WorkerOptions(**{**given, "queues": tuple(given["queues"])})
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s",
    )
    return _Child(options, control, messages).run()


def _first_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte:
            raise SystemExit(EXIT_REFUSED)  # the supervisor died before it said anything
        line += byte
    return line


def leave(code: int) -> NoReturn:
    """End this process as Python would, but for taking each of its objects apart.

    That takes longer than all the rest from the last verdict to the end, and the system has the
    memory back in a moment. What anybody could miss is done, in Python's own order.
    """
    vars(threading)["_shutdown"]()  # waits for threads, as multiprocessing has it done
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
