"""Signed and sealed jobs: whoever can write to the store can't forge, move or read them.

A :class:`Vault` stands between the engine and a store. On the way in it signs each job, or seals
its payload; on the way out it opens what it claimed, and buries what nobody with a key has written:
a changed payload, one that was moved to another job, task or queue, or one without a signature.

Signed: HMAC-SHA-256 (RFC 2104) over the fields below and the payload, which stays readable. Sealed:
AES-256-GCM (NIST SP 800-38D, through the ``cryptography`` package) with the same fields as
associated data; results are sealed too. Each purpose has a key of its own, derived from the secret.
The nonce is derived from what is sealed, so that repeating an ``add`` stores the same bytes.

What this can't see: a job that somebody deletes, and one that is stored again as it was, under its
own id, after the first was pruned. The digest by which keys are compared is stored as it is.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace

from outlast.errors import ConfigurationError, Unsupported
from outlast.job import Claim, Failure, dead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Added, Job, Lost, Step, Verdict
    from outlast.movable import Arrival, Crate, Movable
    from outlast.store import Joined, Joining, Prompt, Stepping, Store, Transaction

__all__ = ["Keys", "Vault"]

SEALED = "sealed"
"""The codec of a payload that only a key opens; the header ``outlast-codec`` names its own one."""
_SIGNATURE, _CODEC = "outlast-signature", "outlast-codec"
_MINIMUM = 32
_NONCE = 12
_MARK = 32


class Keys(Struct, frozen=True, kw_only=True):
    """The secrets of an app, by key id: ``current`` writes, every one of them is accepted.

    To change a secret, add the new one everywhere, then make it the current one, and take the old
    one away when no job of it is left. A secret is at least 32 random bytes.

    >>> keys = Keys(current="2026-11", secrets={"2026-11": secret}, seal=True)
    >>> app = Outlast("sqlite:///shop.db", keys=keys)
    """

    current: str
    secrets: Mapping[str, bytes]
    seal: bool = False
    """Whether payloads and results are encrypted; else they are signed and stay readable."""
    require: bool = True
    """Whether jobs without a signature are buried. False while producers get their keys."""

    def __post_init__(self) -> None:
        if self.current not in self.secrets:
            known = ", ".join(sorted(self.secrets)) or "none"
            raise ConfigurationError(f"the current key {self.current!r} is not among: {known}")
        for name, secret in self.secrets.items():
            if not (name.isascii() and name.isprintable() and ":" not in name and name):
                raise ConfigurationError(f"key id {name!r}: use printable ASCII without a colon")
            if len(secret) < _MINIMUM:
                raise ConfigurationError(
                    f"key {name!r} has {len(secret)} bytes; use at least {_MINIMUM} random ones"
                )

    def __repr__(self) -> str:
        return f"Keys(current={self.current!r}, ids={sorted(self.secrets)}, seal={self.seal})"

    @classmethod
    def read(cls, path: str | os.PathLike[str], **options: bool) -> Keys:
        """The keys of a file of lines ``ID BASE64``; the last one is the current one.

        Raises ``ConfigurationError`` if it can't be read, or if others than its owner can read it.
        """
        try:
            with open(path, encoding="ascii") as file:
                if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                    raise ConfigurationError(f"others can read {path}; chmod 600 it")
                lines = [line.split() for line in file if line.strip() and line[0] != "#"]
            secrets = {name: base64.b64decode(text, validate=True) for name, text in lines}
        except (OSError, ValueError) as error:
            # The error may show a line, and a line is a secret.
            raise ConfigurationError(
                f"{path} can't be read as keys, lines of an id and base64 ({type(error).__name__})"
            ) from None
        return cls(current=list(secrets)[-1] if secrets else "", secrets=secrets, **options)


_IN_PLACE = ("debounce", "throttle")


class Untrusted(Exception):
    """Nobody who has a key has written this."""


class Vault:
    """A store whose jobs are signed or sealed. Everything else goes through to the store."""

    def __init__(self, store: Store, keys: Keys, namespace: str) -> None:
        self._store = store
        self._keys = keys
        self._namespace = namespace
        if keys.seal:
            _cipher(bytes(32))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    # -- in

    async def add(self, jobs: Sequence[Job], capacity: int | None = None) -> Sequence[Added]:
        return await self._store.add(self._protected(jobs), capacity)

    async def unpack(self, move: str, crate: Crate) -> Arrival:
        """``Movable.unpack``: what was stored before comes as it is, what is new is protected."""
        crate = replace(crate, adds=self._protected(crate.adds))
        return await cast("Movable", self._store).unpack(move, crate)

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        by_id = {id(verdict.claim): verdict.claim for verdict in verdicts}
        lost = await self._store.settle([self._protect_verdict(verdict) for verdict in verdicts])
        return [replace(each, claim=by_id.get(id(each.claim), each.claim)) for each in lost]

    # -- out

    async def claim(
        self,
        queues: Sequence[str],
        tasks: Sequence[str | None],
        limit: int,
        lease: float,
        worker: str,
        newest: bool = False,
    ) -> Sequence[Claim]:
        """Claims that can be trusted."""
        found = await self._store.claim(queues, tasks, limit, lease, worker, newest)
        return await self._trusted(found)

    async def claim_next(self, *how: Any) -> Sequence[Claim]:
        return await self._trusted(await cast("Prompt", self._store).claim_next(*how))

    async def _trusted(self, found: Sequence[Claim]) -> Sequence[Claim]:
        """The others are buried at once, with the reason."""
        good, bad = [], []
        for claim in found:
            try:
                good.append(replace(claim, job=self._open(claim.job)))
            except Untrusted as error:
                failure = Failure(kind="untrusted", message=str(error))
                bad.append(dead(claim, failure, started=False))
        if bad:
            await self._store.settle(bad)
        return good

    async def get(self, ids: Sequence[str]) -> Sequence[Job | None]:
        found = await self._ledger.get(ids)
        return [None if job is None else self._shown(job) for job in found]

    async def find(self, **options: Any) -> Sequence[Job]:
        return [self._shown(job) for job in await self._ledger.find(**options)]

    async def finished(self, ids: Sequence[str], timeout: float) -> Sequence[Job]:
        return [self._shown(job) for job in await self._ledger.finished(ids, timeout)]

    @property
    def _ledger(self) -> Any:
        return cast("Any", self._store)

    # -- steps and events

    async def recall(self, claim: Claim) -> Sequence[Step]:
        return [self._shown_step(claim, step) for step in await self._steps.recall(claim)]

    def recall_now(self, claim: Claim) -> Sequence[Step]:
        return [self._shown_step(claim, step) for step in self._steps.recall_now(claim)]

    async def remember(self, claim: Claim, step: Step) -> bool:
        return await self._steps.remember(claim, self._protect_step(claim, step))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        return self._steps.remember_now(claim, self._protect_step(claim, step))

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        return await self._steps.emit(event, self._wrap(payload, self._of_event(event)), keep)

    async def event(self, event: str) -> bytes | None:
        found = await self._steps.event(event)
        return None if found is None else self._unwrap(found, self._of_event(event))

    @property
    def _steps(self) -> Stepping:
        return cast("Stepping", self._store)

    def _protect_step(self, claim: Claim, step: Step) -> Step:
        if step.result is None:
            return step
        return replace(step, result=self._wrap(step.result, _of_step(claim.job, step)))

    def _shown_step(self, claim: Claim, step: Step) -> Step:
        if step.result is None:
            return step
        return replace(step, result=self._unwrap(step.result, _of_step(claim.job, step)))

    def _wrap(self, data: bytes, context: bytes) -> bytes:
        """Signed or sealed, with the id of the key in front."""
        name = self._keys.current
        secret = self._keys.secrets[name]
        if self._keys.seal:
            return f"{name}:".encode() + self._lock(secret, data, context)
        mark = hmac.digest(_derived(secret, b"sign"), context + data, "sha256")
        return f"{name}:".encode() + mark + data

    def _unwrap(self, data: bytes, context: bytes) -> bytes:
        """What was wrapped. Raises ``LeaseLost``'s kin for what nobody with a key has written."""
        name, _, rest = data.partition(b":")
        secret = self._keys.secrets.get(name.decode(errors="replace"))
        if secret is not None:
            if self._keys.seal:
                return self._unlock(secret, rest, context)
            mark, found = rest[:_MARK], rest[_MARK:]
            wanted = hmac.digest(_derived(secret, b"sign"), context + found, "sha256")
            if hmac.compare_digest(wanted, mark):
                return found
        raise Untrusted("a stored step or event was not written by anybody with a known key")

    def _of_event(self, event: str) -> bytes:
        return f"event\0{self._namespace}\0{event}".encode()

    # -- the user's own transactions

    def joined(self, connection: Any) -> Joined:
        return _JoinedVault(self, cast("Joining", self._store).joined(connection))

    async def begin(self, within: float, connection: Any = None) -> Transaction:
        opened = await cast("Joining", self._store).begin(within, connection)
        opened.joined = _JoinedVault(self, opened.joined)
        return opened

    # -- one job

    def _protected(self, jobs: Sequence[Job]) -> list[Job]:
        if any(job.key is not None and job.on_repeat in _IN_PLACE for job in jobs):
            raise Unsupported(
                "signed and sealed jobs are bound to their ids, so another one's arguments can't "
                'take their place: use on_repeat="replace" instead of debounce or throttle'
            )
        return [self._protect(job) for job in jobs]

    def _protect(self, job: Job) -> Job:
        name = self._keys.current
        secret = self._keys.secrets[name]
        if not self._keys.seal:
            mark = hmac.digest(_derived(secret, b"sign"), self._fields(job) + job.payload, "sha256")
            text = f"{name}:{base64.b64encode(mark).decode()}"
            return replace(job, headers={**job.headers, _SIGNATURE: text})
        headers = {**job.headers, _SIGNATURE: f"{name}:", _CODEC: job.codec}
        job = replace(job, headers=headers, codec=SEALED)
        return replace(job, payload=self._lock(secret, job.payload, self._fields(job)))

    def _protect_verdict(self, verdict: Verdict) -> Verdict:
        result = verdict.result
        if result is not None and self._keys.seal:
            secret = self._keys.secrets[self._keys.current]
            sealed = self._lock(secret, result, _of_result(verdict.claim.job))
            result = f"{self._keys.current}:".encode() + sealed
        then = tuple(self._protect(job) for job in verdict.then)
        return replace(verdict, result=result, then=then)

    def _open(self, job: Job) -> Job:
        """The job as it was handed in. Raises ``Untrusted``."""
        name, _, mark = job.headers.get(_SIGNATURE, "").partition(":")
        if not name:
            if self._keys.require or job.codec == SEALED:
                raise Untrusted("the job has no signature; it was not run")
            return job
        secret = self._keys.secrets.get(name)
        if secret is None:
            raise Untrusted(f"the job was signed with key {name!r}, which is not known here")
        headers = {k: v for k, v in job.headers.items() if k not in (_SIGNATURE, _CODEC)}
        if job.codec == SEALED:
            payload = self._unlock(secret, job.payload, self._fields(job))
            return replace(job, payload=payload, codec=job.headers[_CODEC], headers=headers)
        wanted = hmac.digest(_derived(secret, b"sign"), self._fields(job) + job.payload, "sha256")
        if not hmac.compare_digest(base64.b64encode(wanted).decode(), mark):
            raise Untrusted("the signature does not fit: the job was changed, or moved; not run")
        return replace(job, headers=headers)

    def _shown(self, job: Job) -> Job:
        """For people and handles: opened where we can, and else as it stands."""
        try:
            job = self._open(job)
        except Untrusted:
            return job
        if job.result is None or not self._keys.seal:
            return job
        name, _, rest = job.result.partition(b":")
        secret = self._keys.secrets.get(name.decode(errors="replace"))
        if secret is None:
            return job
        try:
            return replace(job, result=self._unlock(secret, rest, _of_result(job)))
        except Untrusted:
            return job  # it will not decode, and whoever asks for it is told so

    def _fields(self, job: Job) -> bytes:
        """What a signature binds the payload to; each with its length, so that none flows over."""
        fields = (
            "outlast1",
            self._namespace,
            job.id,
            job.queue,
            job.task or "",
            job.codec,
            job.headers.get(_CODEC, ""),
            job.key or "",
            job.lane or "",
            str(job.max_attempts),
            str(job.max_crashes),
            str(job.timeout),
        )
        parts = [field.encode() for field in fields]
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)

    def _lock(self, secret: bytes, data: bytes, context: bytes) -> bytes:
        nonce = hmac.digest(_derived(secret, b"nonce"), context + data, "sha256")[:_NONCE]
        return nonce + cast(
            "bytes", _cipher(_derived(secret, b"seal")).encrypt(nonce, data, context)
        )

    def _unlock(self, secret: bytes, data: bytes, context: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            cipher = _cipher(_derived(secret, b"seal"))
            return cast("bytes", cipher.decrypt(data[:_NONCE], data[_NONCE:], context))
        except (InvalidTag, ValueError):
            raise Untrusted("the seal is broken: the job was changed, or moved; not run") from None


class _JoinedVault:
    """The same for what goes into a transaction of the user's."""

    def __init__(self, vault: Vault, joined: Joined) -> None:
        self._vault = vault
        self._joined = joined
        self.plain = joined.plain

    async def add(self, jobs: Sequence[Job]) -> Sequence[Added]:
        return await self._joined.add(self._vault._protected(jobs))

    async def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Lost]:
        return await self._joined.settle([self._vault._protect_verdict(each) for each in verdicts])

    async def remember(self, claim: Claim, step: Step) -> bool:
        return await self._joined.remember(claim, self._vault._protect_step(claim, step))

    def remember_now(self, claim: Claim, step: Step) -> bool:
        return self._joined.remember_now(claim, self._vault._protect_step(claim, step))

    async def emit(self, event: str, payload: bytes, keep: float) -> bool:
        vault = self._vault
        return await self._joined.emit(event, vault._wrap(payload, vault._of_event(event)), keep)

    async def confirm(self) -> None:
        await self._joined.confirm()


def _of_step(job: Job, step: Step) -> bytes:
    return f"step\0{job.id}\0{step.name}\0".encode() + step.digest


def _of_result(job: Job) -> bytes:
    return b"result\0" + job.id.encode()


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"outlast " + purpose, "sha256")


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            "sealing needs the cryptography package: pip install 'outlast[crypto]'"
        ) from None
    return AESGCM(key)
