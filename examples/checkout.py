"""A supermarket: customers queue up and cashiers scan their baskets, until the shop is empty.

    python examples/checkout.py [CUSTOMERS]

Kill it while it runs, as hard as you like, and start it again: nobody in the queue has left, and
whoever stood at a till is served first. It keeps three files in the current folder: the queue, the
door's count and the receipts.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

import outlast

DOOR, RECEIPTS = Path("door.txt"), Path("receipts.txt")
GOODS = ["apples", "bread", "cheese", "eggs", "milk", "rice", "tea"]
CASHIERS = 3

Visit = dict[str, Any]
queue: asyncio.Queue[Visit] = outlast.Queue(maxsize=20, name="checkout")  # was: asyncio.Queue(20)


async def open_the_door(customers: int) -> None:
    """One customer after the other joins the queue."""
    came = len(DOOR.read_text().splitlines()) if DOOR.exists() else 0
    with DOOR.open("a") as door:
        for number in range(came, customers):
            basket = random.Random(number).choices(GOODS, k=1 + number % 7)
            await queue.put({"customer": number, "basket": basket})
            # If we die before this line, the customer comes in twice: see `serve`.
            print(number, file=door, flush=True)


async def serve(served: set[int]) -> None:
    """A cashier at work."""
    with RECEIPTS.open("a") as receipts:
        while True:
            visit = await queue.get()
            # At least once, never less: who comes a second time has been served already.
            if visit["customer"] not in served:
                served.add(visit["customer"])
                for _ in visit["basket"]:
                    await asyncio.sleep(0.001)  # scanning
                print(visit["customer"], len(visit["basket"]), file=receipts, flush=True)
            queue.task_done()


async def main() -> None:
    customers = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    lines = RECEIPTS.read_text().splitlines() if RECEIPTS.exists() else []
    served = {int(line.split()[0]) for line in lines}
    cashiers = [asyncio.create_task(serve(served)) for _ in range(CASHIERS)]
    await open_the_door(customers)
    await queue.join()
    for cashier in cashiers:
        cashier.cancel()
    print(f"{len(served)} customers served, the queue is empty")


if __name__ == "__main__":
    asyncio.run(main())
