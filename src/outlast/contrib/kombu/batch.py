"""What ``Producer.batch()`` of kombu publishes through: many messages in one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.contrib.kombu.channel import Channel
    from outlast.job import Job

__all__ = ["PublishBatch"]


class PublishBatch:
    """Messages that wait for ``flush``; then they are durable, all or none."""

    def __init__(self, channel: Channel, max_size: int) -> None:
        self.channel = channel
        self._max_size = max_size
        self._jobs: list[Job] = []

    def publish(self, message: dict[str, Any], **kwargs: Any) -> None:
        self._jobs += self.channel.jobs(message, **kwargs)
        if len(self._jobs) >= self._max_size:
            self.flush()

    def flush(self) -> None:
        """If it raises, what waited is still here: the next flush repeats it under its ids."""
        if self._jobs:
            self.channel.shared.add(self._jobs)
            self._jobs = []

    def discard(self) -> None:
        self._jobs = []

    def close(self) -> None:
        self._jobs = []
