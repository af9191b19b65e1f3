"""kombu's and Celery's own tests pass on our transport, less a named list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.contrib.kombu import theirs

if TYPE_CHECKING:
    from pathlib import Path


def test_the_list_is_short_and_reasoned() -> None:
    assert len(theirs.DIFFERENT) <= 8
    assert all(theirs.DIFFERENT.values())


@pytest.mark.timeout(300)
def test_kombu(tmp_path: Path) -> None:
    try:
        found = theirs.run_kombu(tmp_path)
    except theirs.Missing as error:
        pytest.skip(f"KOMBU'S OWN TESTS DID NOT RUN: {error}")
    assert theirs.unexpected(found) == {}
    assert list(found.values()).count("passed") >= 25


@pytest.mark.needs("redis")
@pytest.mark.timeout(300)
def test_celery(tmp_path: Path) -> None:
    try:
        found = theirs.run_celery(tmp_path, some=True)
    except theirs.Missing as error:
        pytest.skip(f"CELERY'S OWN TESTS DID NOT RUN: {error}")
    assert theirs.unexpected(found) == {}
    assert list(found.values()).count("passed") == 4
