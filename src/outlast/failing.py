"""Puts failed runs into words: failures as text, whatever the exception does when it is asked."""

from __future__ import annotations

import traceback
from asyncio import CancelledError
from typing import TYPE_CHECKING

from outlast.errors import Retry
from outlast.job import Failure

if TYPE_CHECKING:
    from types import FrameType

    from outlast.errors import DecodeError

__all__ = [
    "MAX_MESSAGE",
    "MAX_TRACEBACK",
    "TimedOut",
    "clean",
    "describe",
    "text_of",
    "undecodable",
]

MAX_MESSAGE = 4096
"""A failure's message is cut to this many characters."""
MAX_TRACEBACK = 16384
"""Of a longer traceback the end is kept: it says where it happened."""


class TimedOut(Exception):
    """Carries the fact that a run's time was up, and what it raised when it was told so."""

    def __init__(self, timeout: float | None, cause: BaseException | None = None) -> None:
        super().__init__(f"still running after its timeout of {timeout:g} s")
        self.cause = cause


def describe(error: BaseException, *, message: str | None = None) -> Failure:
    """A failure as text, whatever the exception does when it is asked for its own."""
    kind = "timeout" if isinstance(error, TimedOut) else "error"
    shown = error.cause if isinstance(error, TimedOut) and error.cause else error
    if message is None:
        message = "the task asked to be tried again" if isinstance(error, Retry) else ""
        if isinstance(error, CancelledError):
            message = "the task raised CancelledError, though nobody had asked to cancel it"
        message = text_of(error) or message
    cls = TimeoutError if kind == "timeout" else type(error)
    name = cls.__qualname__
    if cls.__module__ not in ("builtins", "__main__"):
        name = f"{cls.__module__}.{name}"
    return Failure(
        kind=kind,
        message=clean(message, MAX_MESSAGE),
        type=clean(name, MAX_MESSAGE),
        traceback=_traceback(shown),
    )


def undecodable(error: DecodeError) -> Failure:
    """The failure of a job whose payload, or whose own options, can't be read."""
    return Failure(
        kind="undecodable", message=clean(text_of(error), MAX_MESSAGE), type="DecodeError"
    )


def text_of(error: BaseException) -> str:
    """What an exception says, even if saying it fails."""
    try:
        return str(error)
    except BaseException as wrong:
        return f"(its text can't be shown: __str__ raised {type(wrong).__name__})"


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    # Our own frames come first and tell nobody anything.
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    try:
        shown = traceback.TracebackException(type(error), error, trace, compact=True)
        text = "".join(shown.format())
    except BaseException as wrong:
        return f"(the traceback can't be shown: {type(wrong).__name__})"
    return clean(text[-MAX_TRACEBACK:], MAX_TRACEBACK)


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name == "outlast.execution" or name.startswith("outlast.worker.")


def clean(text: str, longest: int) -> str:
    """Text that every store can hold: cut, without NUL and half characters."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "\\0")
