"""C49: purge reports a number but leaves delayed and fetched tasks, which then run."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cases.rig import Rig


def outlast(rig: Rig, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "outlast", *words, "--url", rig.url],
        capture_output=True,
        text=True,
        check=False,
    )


def test_c49(rig: Rig) -> None:
    (running,) = rig.enqueue(("until", str(rig.folder / "go")), queue="a")
    worker = rig.start("-q", "a", "-c", "1")
    rig.until_started(running)
    ids = {name: rig.enqueue(*[("instant", n) for n in range(100)], queue=name) for name in "abc"}
    delayed = rig.enqueue(*[("instant", n) for n in range(20)], queue="a", delay=3600)
    answer = outlast(rig, "purge", "a", "--yes")
    assert answer.returncode == 0, answer.stderr
    left = rig.ledger(lambda ledger: ledger.get([*ids["a"], *delayed]))
    removed = left.count(None)
    assert str(removed) in answer.stdout
    assert removed == 120
    missing = outlast(rig, "purge", "nowhere", "--yes")
    assert missing.returncode != 0
    assert "nowhere" in missing.stderr
    (rig.folder / "go").touch()
    rig.until_ended([running])
    assert rig.stop(worker) == 0
    rig.start("-q", "a,b,c", "-c", "4")
    rig.until_ended([*ids["b"], *ids["c"]])
    assert rig.starts([*ids["a"], *delayed]) == [0] * 120
    assert rig.ends([running]) == [1]
    assert rig.ends([*ids["b"], *ids["c"]]) == [1] * 200
