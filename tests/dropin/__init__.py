"""The queues beside asyncio's: each test runs on `asyncio.Queue` first, then on ours."""

from __future__ import annotations
