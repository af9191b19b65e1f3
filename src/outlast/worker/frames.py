"""What a worker and the processes of its ``processes=True`` tasks say to each other.

Each frame is a length of four bytes, big-endian, and a record in MessagePack. Data only, both ways.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from outlast.job import Failure, Job, Progress, Step

__all__ = [
    "Begun",
    "Frame",
    "Hello",
    "Known",
    "Note",
    "Order",
    "Outcome",
    "Recall",
    "Remember",
    "Stored",
    "Trouble",
    "pack",
    "unpack",
]


class Hello(Struct, tag=True, frozen=True):
    """The first thing the worker says: where modules are found."""

    path: list[str]
    main: str | None
    """The script that runs as ``__main__``, where the function's module is that."""


class Order(Struct, tag=True, frozen=True):
    """Run this job. The task is looked for in these modules."""

    job: Job
    fence: int
    modules: list[str]
    qualname: str
    steps: bool
    """Whether the store keeps steps: the worker does it when it is asked."""


class Begun(Struct, tag=True, frozen=True):
    """The function is about to be entered: its time runs from here."""


class Note(Struct, tag=True, frozen=True):
    """Progress."""

    progress: Progress


class Outcome(Struct, tag=True, frozen=True):
    """A verdict without its claim."""

    kind: Literal["done", "retry", "give_back", "dead", "cancelled"]
    result: bytes | None
    delay: float
    failure: Failure | None
    started: bool


class Recall(Struct, tag=True, frozen=True):
    """Which steps of the job are stored? ``Known`` or ``Trouble`` comes back."""


class Remember(Struct, tag=True, frozen=True):
    """Store a step of the job. ``Stored`` or ``Trouble`` comes back."""

    step: Step


class Known(Struct, tag=True, frozen=True):
    """The steps that are stored."""

    steps: list[Step]


class Stored(Struct, tag=True, frozen=True):
    """Whether the step was stored: not if the job is not ours any more."""

    held: bool


class Trouble(Struct, tag=True, frozen=True):
    """The store did not do it."""

    unavailable: bool
    message: str


Frame = Hello | Order | Begun | Note | Outcome | Recall | Remember | Known | Stored | Trouble

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def pack(frame: Frame) -> bytes:
    """The bytes to send."""
    data = _encode(frame)
    return len(data).to_bytes(4, "big") + data


def unpack(data: bytes) -> Frame:
    """The record, from what followed the length."""
    frame: Frame = _decode(data)
    return frame
