"""Calls that a store only has for coroutines, made by those who can't await."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["finish"]

T = TypeVar("T")


def finish(call: Coroutine[Any, Any, T]) -> T:
    """Run it to its end and return what it returns; blocks, whatever runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with asyncio.Runner() as runner:
            return runner.run(call)
    answer: Future[T] = Future()
    threading.Thread(target=_answer, args=(call, answer), name="outlast-call").start()
    return answer.result()


def _answer(call: Coroutine[Any, Any, T], answer: Future[T]) -> None:
    try:
        with asyncio.Runner() as runner:
            answer.set_result(runner.run(call))
    except BaseException as error:
        answer.set_exception(error)
