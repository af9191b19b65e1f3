"""A line to a server that can be slow, silent, drip, or be cut just before an answer comes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["Proxy", "proxied"]


class Proxy:
    """Passes on what comes, for every connection alike."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.delay = 0.0
        self.drips = False
        """Whether the answers come through byte by byte, each in a packet of its own."""
        self._cut_at: bytes | None = None
        self.silent = False
        self._made = 0
        self._swallowed = 0
        self._lines: set[asyncio.Task[None]] = set()
        self._open = 0

    def cut_at(self, words: bytes) -> None:
        """Cut the connection when an answer comes to a request that holds this; once."""
        self._cut_at = words

    def swallow(self) -> None:
        """Let no answer through any more on the connections there are; new ones are sound."""
        self._swallowed = self._made

    def cut(self) -> None:
        """Every connection that there is."""
        for line in self._lines:
            line.cancel()

    @property
    def was_cut(self) -> bool:
        return self._cut_at is None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            theirs, ours = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._open += 1
        self._made += 1
        asked = bytearray()
        ways = (
            asyncio.ensure_future(self._pass(reader, ours, asked)),
            asyncio.ensure_future(self._answer(theirs, writer, asked, self._made)),
        )
        self._lines.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, ours):
            end.close()
            with contextlib.suppress(OSError):
                await end.wait_closed()
        self._open -= 1

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: bytearray
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._pause()
                asked += data
                writer.write(data)
                await writer.drain()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: bytearray,
        number: int,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._pause()
                if self._cut_at is not None and self._cut_at in asked:
                    self._cut_at = None
                    return
                asked.clear()
                if not self.silent and number > self._swallowed:
                    size = 1 if self.drips else len(data)
                    for at in range(0, len(data), size):
                        writer.write(data[at : at + size])
                        await writer.drain()
                        # Not before it was sent is the next byte written.
                        await asyncio.sleep(0)

    async def _pause(self) -> None:
        if self.delay:
            await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=self.delay)


@contextlib.asynccontextmanager
async def proxied(port: int) -> AsyncIterator[Proxy]:
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        while proxy._open:
            await asyncio.sleep(0)
