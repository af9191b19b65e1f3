"""Deliveries are read from the stream as the client would read them, however it is cut up."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika import frame, spec
from pika.exceptions import InvalidFrameError

from outlast.stores.rabbitmq.quick import QuickConnection

MINE, OTHER = 3, 4


class Bare(QuickConnection):
    """As much of a connection as reading needs."""

    def __init__(self) -> None:
        self.quick = {}
        self._frame_buffer = b""
        self.bytes_received = 0
        self.frames: list[Any] = []
        self.given: list[tuple[int, dict[str, Any], bytes]] = []

    def _process_frame(self, frame_value: Any) -> None:
        self.frames.append(frame_value)


def delivery(
    channel: int, tag: int, body: bytes, *, headers: dict[str, Any] | None = None, most: int = 4096
) -> bytes:
    method = spec.Basic.Deliver(f"outlast.{tag}", tag, False, "outlast/lines", "outlast/x/y/z")
    properties = pika.BasicProperties(
        delivery_mode=2, message_id="m", content_type="x", headers=headers
    )
    found = frame.Method(channel, method).marshal()
    found += frame.Header(channel, len(body), properties).marshal()
    for at in range(0, len(body), most):
        found += frame.Body(channel, body[at : at + most]).marshal()
    return bytes(found)


COUNTED = {"x-delivery-count": 3, "other": "\N{SNOWMAN}" * 40}
STREAM = [
    delivery(MINE, 1, b"first"),
    frame.Heartbeat().marshal(),
    delivery(MINE, 2, b"", headers=COUNTED),
    delivery(MINE, 300, b"y" * 200, most=64),
    delivery(OTHER, 9, b"not mine"),
    frame.Method(MINE, spec.Basic.CancelOk("outlast.1")).marshal(),
    delivery(MINE, 1 << 40, b"\xce" * 90, headers={"x-delivery-count": 0}),
    frame.Heartbeat().marshal(),
]
GIVEN = [
    (1, {}, b"first"), (2, COUNTED, b""), (300, {}, b"y" * 200),
    (1 << 40, {"x-delivery-count": 0}, b"\xce" * 90),
]  # fmt: skip
FRAMES = [frame.Heartbeat, frame.Method, frame.Header, frame.Body, frame.Method, frame.Heartbeat]


def fed(pieces: list[bytes]) -> Bare:
    bare = Bare()
    bare.quick[MINE] = lambda *what: bare.given.append(what)
    for piece in pieces:
        bare._on_data_available(piece)
    return bare


@pytest.mark.parametrize("step", [1, 2, 3, 7, 11, 20, 21, 50, 64, 113, 200, 10_000])
def test_however_it_is_cut_up(step: int) -> None:
    whole = b"".join(STREAM)
    bare = fed([whole[at : at + step] for at in range(0, len(whole), step)])
    assert bare.given == GIVEN
    assert [type(each) for each in bare.frames] == FRAMES
    assert bare.bytes_received == len(whole)
    assert bare._frame_buffer == b""


def test_each_place_to_cut_it_in_two() -> None:
    whole = b"".join(STREAM)
    for at in range(len(whole)):
        bare = fed([whole[:at], whole[at:]])
        assert (bare.given, len(bare.frames)) == (GIVEN, len(FRAMES)), at


def test_what_the_client_has_begun_it_ends() -> None:
    """A consumer may begin between two frames of a message that the client has seen the half of."""
    message = delivery(MINE, 1, b"body")
    bare = Bare()
    cut = len(frame.Method(MINE, spec.Basic.Deliver("outlast.1", 1, False, "", "")).marshal()) + 30
    bare._on_data_available(message[:cut])
    bare.quick[MINE] = lambda *what: bare.given.append(what)
    bare._on_data_available(message[cut:] + delivery(MINE, 2, b"next"))
    assert [type(each) for each in bare.frames] == [frame.Method, frame.Header, frame.Body]
    assert bare.given == [(2, {}, b"next")]


@pytest.mark.parametrize("spoil", [-1, -len(frame.Body(MINE, b"body").marshal()) - 1])
def test_what_is_no_frame_is_told(spoil: int) -> None:
    message = bytearray(delivery(MINE, 1, b"body"))
    message[spoil] = 0
    with pytest.raises(InvalidFrameError):
        fed([bytes(message)])
