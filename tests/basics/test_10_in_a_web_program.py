"""10. In a web program: the app opens with it, and a small one may bring its worker along."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from outlast import Outlast, StoreClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

app = Outlast("memory://")


@app.task
async def resize(path: str) -> str:
    return f"{path}.small"


class Web:
    """Any ASGI framework with a lifespan: Starlette, FastAPI, Litestar, …"""

    def __init__(self, lifespan: Callable[[Web], AbstractAsyncContextManager[None]]) -> None:
        self.lifespan = lifespan

    async def upload(self, path: str) -> str:
        return (await resize.enqueue(path)).id


async def test_the_app_is_open_as_long_as_the_program_runs() -> None:
    web = Web(lifespan=app.lifespan)
    with pytest.raises(StoreClosed, match="async with app"):
        await web.upload("cat.png")
    async with web.lifespan(web):
        assert await web.upload("cat.png")


async def test_with_a_worker_in_the_same_program() -> None:
    """Its event loop is shared, so this is for tasks that mostly wait."""

    @asynccontextmanager
    async def lifespan(_: Web) -> AsyncIterator[None]:
        async with app.worker(concurrency=5, grace=10):
            yield

    web = Web(lifespan)
    async with web.lifespan(web):
        job = await web.upload("cat.png")
        assert await app.handle(job).result(timeout=60) == "cat.png.small"
