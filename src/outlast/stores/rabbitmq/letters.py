"""Jobs as messages: what is the same for all calls of a task is packed and read once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from outlast.errors import DecodeError
from outlast.job import Failure, Job

__all__ = ["Packer", "State", "read"]

FORMAT = 1
_KEPT = (
    "queue", "task", "codec", "headers", "priority", "max_attempts", "max_crashes",
    "timeout", "keep",
)  # fmt: skip
_DEFAULT = Job(id="")
_pack = msgspec.msgpack.Encoder().encode
_read_model = msgspec.msgpack.Decoder(dict[str, Any]).decode


class State(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """What has become of a job so far. ``fence`` is the highest that it ever had."""

    created_at: float
    run_at: float | None = None
    expires_at: float | None = None
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    fence: int = 0
    failure: Failure | None = None


class _Letter(msgspec.Struct, array_like=True, gc=False):
    format: int
    id: str
    payload: bytes
    model: bytes
    state: State


_read_letter = msgspec.msgpack.Decoder(_Letter).decode


class Packer:
    """Packs jobs. It remembers the last model, since calls of one task come in a row."""

    __slots__ = ("_model", "_packed")

    def __init__(self) -> None:
        self._model: Job | None = None
        self._packed = b""

    def pack(self, job: Job, state: State, model: Job | None = None) -> bytes:
        """``model`` is the job that all of a batch are like, if the caller knows it."""
        if model is None:
            model = replace(
                job, id="", payload=b"", status=_DEFAULT.status, attempt=0, failures=0, crashes=0,
                suspect=False, worker=None, started_at=None, created_at=None, failure=None,
                run_at=None, delay=None, expires_at=None, ttl=None,
            )  # fmt: skip
        if model is not self._model:
            if model != self._model:
                self._packed = _pack(
                    {
                        name: getattr(model, name)
                        for name in _KEPT
                        if getattr(model, name) != getattr(_DEFAULT, name)
                    }
                )
            self._model = model
        return _pack(_Letter(FORMAT, job.id, job.payload, self._packed, state))


@lru_cache(maxsize=1024)
def _model(packed: bytes) -> Job:
    return msgspec.convert({"id": "", **_read_model(packed)}, Job, strict=False)


def read(body: bytes) -> tuple[Job, State]:
    """The job of a message, as it was when that was written. Raises ``DecodeError``."""
    try:
        letter = _read_letter(body)
        if letter.format != FORMAT:
            raise DecodeError(f"format {letter.format}: written by a newer outlast", body)
        model = _model(letter.model)
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
        raise DecodeError(f"no job of outlast: {error}", body) from None
    state = letter.state
    job = replace(
        model,
        id=letter.id,
        payload=letter.payload,
        created_at=state.created_at,
        run_at=state.run_at,
        expires_at=state.expires_at,
        attempt=state.attempt,
        failures=state.failures,
        crashes=state.crashes,
        failure=state.failure,
    )
    return job, state
