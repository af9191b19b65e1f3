"""The rig that looks for bloat: it runs, and it sees what grows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.proof.bloat import SLACK, come_and_go, grown
from tests.servers import PostgresServer, shared


@pytest.mark.needs("servers")
async def test_jobs_come_and_go() -> None:
    server = shared(PostgresServer)
    await server.empty()
    found: dict[str, Any] = await come_and_go(server, 2.0)
    assert found["settled"] > 0
    assert found["queued"] > 0
    assert {"jobs", "ended", "keys", "changes", "counts"} <= set(found["tables"])


def test_what_grows_is_seen() -> None:
    steady = [{"jobs": SLACK, "ended": SLACK} for _ in range(8)]
    assert grown(steady) == ({"jobs": (SLACK, SLACK), "ended": (SLACK, SLACK)}, [])
    steady[-1]["jobs"] = 3 * SLACK
    _, [story] = grown(steady)
    assert story.startswith("jobs grew from")
