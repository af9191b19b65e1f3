"""Where the app finds its URL, what it makes of it, and that no secret is shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from outlast import ConfigurationError, Durability, Outlast

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_URL", raising=False)
    monkeypatch.delenv("OUTLAST_URL_FILE", raising=False)


def test_the_argument_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_URL", "memory://environment")
    assert Outlast("memory://argument").url == "memory://argument"


def test_then_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("memory://file\n")
    monkeypatch.setenv("OUTLAST_URL_FILE", str(tmp_path / "url"))
    assert Outlast().url == "memory://file"
    monkeypatch.setenv("OUTLAST_URL", " memory://environment ")
    assert Outlast().url == "memory://environment"
    monkeypatch.setenv("OUTLAST_URL", "")
    assert Outlast().url == "memory://file"


async def test_without_any_it_is_an_error_when_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Outlast()
    assert app.url is None
    assert repr(app) == "<Outlast without a URL, namespace 'default'>"
    with pytest.raises(ConfigurationError, match=r"OUTLAST_URL.*OUTLAST_URL_FILE"):
        await app.open()
    with pytest.raises(ConfigurationError, match="OUTLAST_URL"):
        app.open_store()
    # Set by the program itself meanwhile, from a file of settings say.
    monkeypatch.setenv("OUTLAST_URL", "memory://")
    async with app:
        assert app.url is not None


@pytest.mark.parametrize(
    ("content", "found"), [(None, "can't be read: No such file"), (b"", "empty"), (b"\xff", "text")]
)
def test_a_file_that_holds_no_url(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, found: str
) -> None:
    path = tmp_path / "url"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("OUTLAST_URL_FILE", str(path))
    with pytest.raises(ConfigurationError, match=f"{path}.*{found}"):
        Outlast()


@pytest.mark.parametrize(
    "url",
    ["", "jobs.db", "sqlite://jobs.db", "sqlite:///", "amqp://x:0", "http://x", "memory://a b", 7],
)
def test_a_bad_url_is_refused_when_the_app_is_made(url: Any) -> None:
    with pytest.raises(ConfigurationError):
        Outlast(url)


def test_a_bad_url_in_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_URL", "jobs.db")
    with pytest.raises(ConfigurationError, match=r"jobs\.db"):
        Outlast()


SECRET = "c4n4ry"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host/zero",
        f"nosuch://user:{SECRET}@host",
        f"sqlite:///jobs.db?password={SECRET}",
        f"user:{SECRET}@host",
    ],
)
def test_no_message_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Outlast(url)
    shown: BaseException | None = caught.value
    while shown is not None:
        assert SECRET not in f"{shown!r} {shown}"
        shown = shown.__cause__ or shown.__context__


def test_the_app_shows_no_password_either() -> None:
    app = Outlast("memory://")
    app._url = f"postgresql://user:{SECRET}@host/jobs"  # not in this version, but one day
    assert app.url == "postgresql://user:***@host/jobs"
    assert SECRET not in repr(app)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"namespace": ""}, "namespace"),
        ({"namespace": "a b"}, "namespace 'a b'"),
        ({"max_payload": 0}, "max_payload=0"),
        ({"max_payload": 1.5}, "max_payload=1.5"),
        ({"max_payload": 1 << 29}, "max_payload=536870912.*to 268435456"),
        ({"max_depth": -1}, "max_depth=-1"),
        ({"durability": "power"}, "durability='power'.*Durability.POWER"),
        ({"durability": 2}, "durability=2"),
    ],
)
def test_a_bad_option_is_refused_when_the_app_is_made(options: Any, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        Outlast("memory://", **options)


def test_two_opinions_about_durability() -> None:
    url = "sqlite:///jobs.db?durability=process"
    assert Outlast(url, durability=Durability.PROCESS).url is not None
    with pytest.raises(ConfigurationError, match="disagree"):
        Outlast(url, durability=Durability.POWER)


def test_limits_are_those_of_the_app() -> None:
    app = Outlast("memory://", max_payload=50, max_depth=2)

    @app.task(name="take")
    async def take(what: Any) -> None: ...

    take.call("x" * 30)
    with pytest.raises(TypeError, match="50"):
        take.call("x" * 60)
    with pytest.raises(TypeError, match="2 levels"):
        take.call([[[1]]])


async def test_changing_the_folder_changes_no_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a #1?").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a #1?")
    app = Outlast("sqlite:///jobs.db?durability=process")
    monkeypatch.chdir(tmp_path / "b")
    async with app:
        assert app.store.durability is Durability.PROCESS
    assert os.listdir(tmp_path / "b") == []
    assert (tmp_path / "a #1?" / "jobs.db").exists()


def test_a_folder_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigurationError, match="current folder, which is gone"):
        Outlast("sqlite:///jobs.db")
    monkeypatch.chdir(tmp_path)


async def test_the_worker_s_store_need_not_create_the_file(tmp_path: Path) -> None:
    from outlast import StoreError

    app = Outlast(f"sqlite:///{tmp_path}/jobs.db?durability=process")
    store = app.open_store(create=False)
    with pytest.raises((StoreError, ConfigurationError)):
        await store.open()
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_namespaces_share_a_file_and_nothing_else(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db?durability=process"
    one, two = Outlast(url, namespace="one"), Outlast(url, namespace="two")
    task = one.task(name="it")(_it)
    async with one, two:
        await task.enqueue()
        assert (await one.store.depth("default")).ready == 1
        assert (await two.store.depth("default")).ready == 0


async def _it() -> None: ...


def test_how_it_looks() -> None:
    app = Outlast("memory://shop", namespace="eu")
    assert repr(app) == "<Outlast memory://shop, namespace 'eu'>"
