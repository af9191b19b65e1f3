"""A connection of the client that takes deliveries out of the stream by itself, whole ones at once.

The client makes objects of three frames a message, which costs more than all that a store does
with it. Whatever isn't a delivery to a channel of ``quick`` goes the client's own way.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from pika import BasicProperties
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import InvalidFrameError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["QuickConnection"]

RECEIVE = 1 << 16
"""Bytes that are read from the socket at once; the client reads 4 KiB."""

# AMQP 0-9-1, section 4.2: a frame is type, channel, size, payload and an end. A message is a method
# frame (here basic.deliver), a header frame (class, weight, size, flags, properties), and bodies.
_frame = Struct(">BHI").unpack_from
_deliver = Struct(">BHII").unpack_from
_tag = Struct(">Q").unpack_from
_header = Struct(">BHIHHQH").unpack_from
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_AROUND, _SHORTEST, _HEADER_SIZE = 8, 11, 21
_DELIVER = 60 << 16 | 60
_HEADERS = 1 << 13


class QuickConnection(AsyncioConnection):
    """``quick`` has, for each channel, who is given its deliveries: tag, headers and body."""

    quick: dict[int, Callable[[int, dict[str, Any], bytes], None]]

    def __init__(self, *args: Any, **more: Any) -> None:
        self.quick = {}
        super().__init__(*args, **more)

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = RECEIVE
        super()._proto_connection_made(transport)

    def _on_stream_terminated(self, error: Exception | None) -> None:
        """Nobody is told where we hung up without a word, which the client takes for a fault."""
        if error is None and self._error is None:
            self._remove_heartbeat()
        else:
            super()._on_stream_terminated(error)

    def _on_data_available(self, data_in: bytes) -> None:
        self._frame_buffer += data_in
        while self._frame_buffer:
            if self.quick and not self._take_deliveries():
                return
            used, frame = self._read_frame()
            if not frame:
                return
            self._trim_frame_buffer(used)
            self._process_frame(frame)

    def _take_deliveries(self) -> bool:
        """Give away the deliveries at the beginning; whether it is the client's turn then.

        It isn't when nothing is left, or the beginning of a delivery whose end is yet to come.
        """
        buffer, at, end = self._frame_buffer, 0, len(self._frame_buffer)
        quick, theirs = self.quick, True
        while end - at >= _SHORTEST:
            kind, channel, size, method = _deliver(buffer, at)
            give = quick.get(channel) if kind == _METHOD and method == _DELIVER else None
            if give is None:
                break
            found = _content(buffer, at + size + _AROUND, end)
            if found is None:
                theirs = False
                break
            headers, content, after = found
            # Behind the method's number: the consumer's tag as a short string, then the number.
            (tag,) = _tag(buffer, at + 12 + buffer[at + 11])
            give(tag, headers, content)
            at = after
        if at:
            self._trim_frame_buffer(at)
        return theirs and at < end


def _content(buffer: bytes, at: int, end: int) -> tuple[dict[str, Any], bytes, int] | None:
    """The header and the bodies from here on, and where they end; None if they aren't all here."""
    if at + _HEADER_SIZE > end:
        return None
    kind, _, size, _, _, left, flags = _header(buffer, at)
    if kind != _HEADER or buffer[at - 1] != _END:
        raise InvalidFrameError(f"a frame of type {kind} after a delivery")
    properties, at = at + 19, at + size + _AROUND
    headers = _headers(buffer[properties : at - 1]) if flags & _HEADERS and at <= end else {}
    parts = []
    while left > 0:
        if at + _AROUND > end:
            return None
        kind, _, size = _frame(buffer, at)
        if kind != _BODY or buffer[at - 1] != _END:
            raise InvalidFrameError(f"a frame of type {kind} before the end of a body")
        parts.append(buffer[at + 7 : at + 7 + size])
        left -= size
        at += size + _AROUND
    if at > end:
        return None
    if buffer[at - 1] != _END:
        raise InvalidFrameError("a body without its end")
    return headers, parts[0] if len(parts) == 1 else b"".join(parts), at


def _headers(properties: bytes) -> dict[str, Any]:
    found = BasicProperties()
    found.decode(properties)
    headers: dict[str, Any] = found.headers or {}
    return headers
