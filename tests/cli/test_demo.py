"""`outlast demo` on files of the test's own: killed all the while, interrupted, resumed, judged."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.proof.patience import until

from outlast.cli.demo_work import Witness

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(360)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "outlast", "demo", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two hundred files, large enough that a worker can be met at work."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}.txt").write_bytes(b"some words in a line\n" * (20_000 + number))
    (folder / "no-file").symlink_to(folder / "0.txt")
    return folder


def test_it_kills_and_loses_nothing(files: Path, tmp_path: Path) -> None:
    first = start(tmp_path, "files")
    until((tmp_path / "outlast-demo.journal").exists, 60, "a job has begun")
    os.kill(first.pid, signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert (tmp_path / "outlast-demo.db").exists()
    second = start(tmp_path, "files")
    said, wrong = second.communicate(timeout=240)
    assert second.returncode == 0, said + wrong
    assert "going on: " in said
    found = dict(re.findall(r"^([a-z ]+?) +(\d+)$", said, re.MULTILINE))
    assert found["files"] == "200"
    assert int(found["kills"]) >= 1
    assert int(found["jobs interrupted"]) >= 10
    assert (found["dead"], found["lost"], found["differences"]) == ("0", "0", "0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["files"]


def test_work_that_is_over_at_once_is_interrupted_all_the_same(tmp_path: Path) -> None:
    """Kills go by progress: a fast machine must not be through before the first of them."""
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(300):
        (folder / str(number)).write_bytes(b"a word")
    # What a demo left whose store was deleted: it says nothing of the jobs of this one.
    others = b"".join(b"start 1 other-%d\n" % n for n in range(400))
    (tmp_path / "outlast-demo.journal").write_bytes(others * 2)
    demo = start(tmp_path, "files")
    said, wrong = demo.communicate(timeout=240)
    assert demo.returncode == 0, said + wrong
    found = dict(re.findall(r"^([a-z ]+?) +(\d+)$", said, re.MULTILINE))
    assert 10 <= int(found["jobs interrupted"]) < 300
    assert (found["lost"], found["differences"]) == ("0", "0")


def test_the_witness_counts_its_own_jobs(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    witness = Witness(journal, ["a", "b"])
    witness.look()
    with journal.open("ab", buffering=0) as file:
        file.write(b"start 7 a\nstart 7 b\nend 7 a\nstart 8 c\nstart 9 c\nstart 9")
        witness.look()
        assert witness.interrupted == 0
        assert (witness.lately(7), witness.lately(8)) == (["a", "b"], [])
        file.write(b" b\nend 9 b\nend 9 b\nend 9 a\n")
        witness.look()
    assert (witness.interrupted, witness.twice) == (1, 2)
    assert witness.lately(7) == ["a"], "b was interrupted before: that again shows nothing new"


def test_too_few_files(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    demo = start(tmp_path, ".")
    _, wrong = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert "holds 1 files" in wrong


def test_the_store_of_the_environment_is_left_alone(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUTLAST_URL names the store of a real program; the demo's jobs belong into its own."""
    store = tmp_path / "shop.db"
    monkeypatch.setenv("OUTLAST_URL", f"sqlite:///{store}")
    demo = start(tmp_path, "files")
    until((tmp_path / "outlast-demo.journal").exists, 60, "a job has begun")
    os.kill(demo.pid, signal.SIGINT)
    said, _ = demo.communicate(timeout=60)
    assert f"store {tmp_path / 'outlast-demo.db'}," in said
    assert not store.exists()
