"""The program of docs/celery.md, "Beside it", with a real Redis, a Celery worker and a producer."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.contrib.beside.pair import PATIENCE, ROOT
from tests.contrib.beside.workers import Workers
from tests.proof.patience import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contrib.beside.pair import Producer
    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")


def program() -> str:
    page = (ROOT / "docs" / "celery.md").read_text()
    section = page[page.index("## Beside it") : page.index("## Instead of it")]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(blocks[0])


def test_the_page(redis: RedisServer, producer: Producer, tmp_path: Path) -> None:
    (tmp_path / "shop_outlast.py").write_text(program())
    workers = Workers(tmp_path, redis.url(), CELERY_BROKER=redis.url())
    try:
        subprocess.run(
            [sys.executable, "shop_outlast.py"], cwd=tmp_path, check=True, timeout=PATIENCE,
            env=workers.environment,
        )  # fmt: skip
        workers.ours(module="shop_outlast")
        sent = producer.send(
            "shop.send_receipt", 42, to="a@b.example", options={"queue": "outlast"}
        )
        assert producer.get(sent) == "receipt for order 42 to a@b.example"
        # Nobody runs the other one here: it went where a worker of Celery's would find it.
        until(lambda: redis.say("LLEN", "celery") == b":1\r\n", PATIENCE, "it was sent")
        assert b"shop.pack" in redis.say("LINDEX", "celery", "0")
    finally:
        workers.close()
