"""``amqps://``: the broker's certificate is checked, by the authority that the URL names."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.proof.patience import until
from tests.servers import RabbitServer, free_port, listens

from outlast import Outlast
from outlast.errors import ConfigurationError
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("rabbitmq")
HOURS = datetime.timedelta(hours=24)
NO_USE = dict.fromkeys(
    (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    ),
    False,
)  # fmt: skip
CA_USE = x509.KeyUsage(**NO_USE | {"key_cert_sign": True, "crl_sign": True})
SERVER_USE = x509.KeyUsage(**NO_USE | {"digital_signature": True})
"""Since Python 3.13 an authority must say that it may sign."""


class Authority:
    """It signs its own certificate, and that of one server."""

    def __init__(self, folder: Path, name: str) -> None:
        self.file = folder / f"{name}.pem"
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._write(self.file, self._signed(self._name, self._key.public_key(), ca=True))

    def server(self, host: str) -> tuple[Path, Path]:
        """Certificate and key of a server of this name or address."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a broker")])
        signed = self._signed(name, key.public_key(), ca=False, alternative=alternative)
        certificate, secret = self._folder / "server.pem", self._folder / "server.key"
        self._write(certificate, signed)
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )  # fmt: skip
        return certificate, secret

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        ca: bool,
        alternative: x509.GeneralName | None = None,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOURS)
            .not_valid_after(now + HOURS)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(CA_USE if ca else SERVER_USE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer),
                critical=False,
            )
        )
        if alternative is not None:
            names = x509.SubjectAlternativeName([alternative])
            made = made.add_extension(names, critical=False)
        return made.sign(self._key, hashes.SHA256())

    @staticmethod
    def _write(file: Path, certificate: x509.Certificate) -> None:
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def port(authority: Authority) -> Iterator[int]:
    """Where a broker listens that shows a certificate for 127.0.0.1."""
    certificate, key = authority.server("127.0.0.1")
    port = free_port()
    server = RabbitServer(
        settings=f"listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {authority.file}\n"
        f"ssl_options.certfile = {certificate}\nssl_options.keyfile = {key}\n"
        "ssl_options.verify = verify_none"
    )
    try:
        server.start()
        until(lambda: listens(port), 60.0, "it takes TLS", beat=0.02)  # later than the other
        yield port
    finally:
        server.remove()


async def test_jobs_travel_by_tls(port: int, authority: Authority) -> None:
    app = Outlast(f"amqps://guest:guest@127.0.0.1:{port}/?cafile={authority.file}")
    seen: list[int] = []

    @app.task(name="note", timeout=60.0)
    async def note(number: int, text: str) -> None:
        assert text == "x" * 50_000
        seen.append(number)

    async with app:
        await app.enqueue_many([note.call(number, "x" * 50_000) for number in range(40)])
        async with app.worker():
            while len(seen) < 40:
                await app.store.wait(["default"], 0.02)
    assert sorted(seen) == list(range(40))


async def test_another_authority_is_refused(port: int, folder: Path) -> None:
    other = Authority(folder, "another")
    store = connect(f"amqps://guest:Secret1@127.0.0.1:{port}/?cafile={other.file}")
    with pytest.raises(ConfigurationError, match=r"certificate.*cafile=") as caught:
        await store.open()
    assert "Secret1" not in str(caught.value)


async def test_what_the_system_does_not_know_is_refused(port: int) -> None:
    store = connect(f"amqps://guest:guest@127.0.0.1:{port}/")
    with pytest.raises(ConfigurationError, match=r"certificate.*cafile="):
        await store.open()


async def test_another_name_than_that_of_the_certificate(port: int, authority: Authority) -> None:
    store = connect(f"amqps://guest:guest@localhost:{port}/?cafile={authority.file}")
    with pytest.raises(ConfigurationError, match=r"certificate.*localhost"):
        await store.open()


async def test_an_authority_that_can_not_be_read(port: int, folder: Path) -> None:
    for cafile in (folder / "nowhere.pem", folder / "server.key"):
        store = connect(f"amqps://guest:guest@127.0.0.1:{port}/?cafile={cafile}")
        with pytest.raises(
            ConfigurationError, match=r"cafile=.*(nowhere\.pem|server\.key) can.t be read"
        ):
            await store.open()
