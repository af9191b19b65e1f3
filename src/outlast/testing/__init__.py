"""For tests of programs that use outlast: a clock, runs without workers, crashes, and repeats.

from outlast.testing import drain, in_memory, kill_after

async def test_the_receipt_goes_out_once(mailbox):
    async with in_memory(app):
        await send_receipt.enqueue(42, to="a@b.example")
        with kill_after("returned"):
            await drain(app)  # the worker dies before it can say that it is done
        await drain(app)  # and another one has the job
    assert len(mailbox) == 1
"""

from __future__ import annotations

from outlast.testing.clock import FakeClock
from outlast.testing.crash import POINTS, kill_after
from outlast.testing.idempotence import NotIdempotent, assert_idempotent
from outlast.testing.running import Enqueued, assert_enqueued, drain, enqueued, in_memory, inline

__all__ = [
    "POINTS",
    "Enqueued",
    "FakeClock",
    "NotIdempotent",
    "assert_enqueued",
    "assert_idempotent",
    "drain",
    "enqueued",
    "in_memory",
    "inline",
    "kill_after",
]
