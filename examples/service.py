"""A web service that answers at once and works later: what it has accepted survives a restart.

    python examples/service.py [PORT]

    curl -d '{"number": 1, "item": "tea"}' http://127.0.0.1:8000/   202, as soon as it is on disk
    curl http://127.0.0.1:8000/                                     the orders that are done

A worker handles the orders in the background and writes them to orders.txt. Kill the service after
the answer and before the work, and start it again: the order is there. No framework, so that
nothing hides what happens; with one, put into the queue where it lets you answer a request.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import outlast

DONE = Path("orders.txt")


@dataclass
class Order:
    number: int
    item: str


queue: asyncio.Queue[Order] = outlast.Queue(name="orders", type=Order)  # was: asyncio.Queue()


async def work() -> None:
    """Handle one order after the other, each once for all who look at orders.txt."""
    done = set(DONE.read_text().splitlines()) if DONE.exists() else set()
    with DONE.open("a") as file:
        while True:
            order = await queue.get()
            await asyncio.sleep(0.01)  # the slow part
            line = f"{order.number} {order.item}"
            if line not in done:
                print(line, file=file, flush=True)
                done.add(line)
            queue.task_done()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request: POST stores an order, GET tells what is done."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = [line.partition(": ") for line in head.lower().split("\r\n")[1:]]
        size = int({name: value for name, _, value in lines}.get("content-length", "0"))
        if head.startswith("POST "):
            await queue.put(Order(**json.loads(await reader.readexactly(size))))
            status, body = "202 Accepted", "accepted\n"
        else:
            status, body = "200 OK", DONE.read_text() if DONE.exists() else ""
    except (ValueError, TypeError, asyncio.IncompleteReadError) as error:
        status, body = "400 Bad Request", f"{error}\n"
    writer.write(f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}".encode())
    await writer.drain()
    writer.close()


async def main() -> None:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    worker = asyncio.create_task(work())
    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", flush=True)
    async with server:
        await worker


if __name__ == "__main__":
    asyncio.run(main())
