"""Queues that survive: ``asyncio.Queue`` and its two sisters, on a store."""

from __future__ import annotations

from outlast.queue.kinds import LifoQueue, PriorityQueue
from outlast.queue.queue import Queue

__all__ = ["LifoQueue", "PriorityQueue", "Queue"]
