"""The answer to a thread that waits for it, and to one that comes later."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from outlast.stores.replies import Blocked, Reply, deliver


def call() -> tuple[Reply[int], Blocked[int]]:
    reply: Reply[int] = Reply()
    blocked: Blocked[int] = Blocked()
    reply.reply = blocked
    return reply, blocked


def test_a_thread_that_waits_is_answered() -> None:
    reply, blocked = call()
    assert reply.wanted
    reply.answer = 7
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(blocked.result)
        deliver([reply])
        assert waiting.result(60) == 7
    assert blocked.result() == 7
    assert blocked.done()
    assert not reply.wanted


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    reply, blocked = call()
    reply.error = ValueError("no")
    deliver([reply])
    with pytest.raises(ValueError, match="no"):
        blocked.result()
