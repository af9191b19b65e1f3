"""Bodies of Celery's messages: unpacked, decompressed and parsed, data only and within limits."""

from __future__ import annotations

import base64
import binascii
import bz2
import lzma
import uuid
import zlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LARGEST", "Refused", "parse", "plain", "unpack"]

LARGEST = 16 << 20
"""Bytes that a body may take when it is decompressed."""

_from_json = msgspec.json.Decoder().decode
_from_msgpack = msgspec.msgpack.Decoder().decode

_JSON = ("application/json", "text/json", "json")
_MSGPACK = ("application/x-msgpack", "application/msgpack", "application/vnd.msgpack", "msgpack")
_CODE = {
    "application/x-python-serialize": "pickle",
    "application/x-python-pickle": "pickle",
    "application/x-yaml": "yaml",
    "application/yaml": "yaml",
    "text/yaml": "yaml",
}


class Refused(Exception):
    """A message that can't be run. Its text says why, and how the sender is to be changed."""


def unpack(body: Any, encoding: object) -> bytes:
    """The body's bytes, as they were before a carrier of texts took them."""
    if isinstance(body, bytes):
        return body
    if not isinstance(body, str):
        raise Refused(f"the body is no text but {type(body).__name__}")
    if encoding == "base64":
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError) as error:
            raise Refused(f"the body is said to be base64 and is not: {error}") from None
    if encoding not in (None, ""):
        raise Refused(f"body_encoding {encoding!r} is not known; send base64, or none")
    return body.encode("utf-8", "surrogatepass")


def parse(body: bytes, kind: object, encoding: object, compression: object) -> Any:
    """What a body says: plain JSON values, and bytes as base64. Raises ``Refused``."""
    if compression:
        body = _decompressed(body, str(compression))
    kind = str(kind or "application/json").partition(";")[0].strip().lower()
    if kind in _CODE:
        raise Refused(
            f"the body is {_CODE[kind]} ({kind}), which can run code of whoever wrote it; set "
            "task_serializer='json' (or 'msgpack') in the Celery app that sends it"
        )
    try:
        if kind in _MSGPACK:
            return _from_msgpack(body)
        if kind in _JSON:
            return _from_json(_as_utf8(body, str(encoding or "utf-8")))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Refused(f"the body can't be read as {kind}: {error}") from None
    raise Refused(
        f"bodies of type {kind!r} are not read; set task_serializer='json' (or 'msgpack') in the "
        "Celery app that sends it"
    )


def _as_utf8(body: bytes, encoding: str) -> bytes:
    if encoding.lower() in ("utf-8", "utf8", "us-ascii", "ascii", "binary"):
        return body
    try:
        return body.decode(encoding).encode()
    except (LookupError, UnicodeError) as error:
        raise Refused(f"content_encoding {encoding!r}: {error}") from None


def _decompressed(body: bytes, method: str) -> bytes:
    opener = _OPENERS.get(method.lower())
    if opener is None:
        raise Refused(
            f"compression {method!r} is not known here; use gzip, bzip2 or lzma in the Celery app "
            "that sends it (task_compression), or none"
        )
    try:
        return opener(body)
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise Refused(f"the body is said to be {method} and is not: {error}") from None


def _zlib(body: bytes) -> bytes:
    # 32: told by its first bytes, zlib's own form or gzip's.
    return _bounded(zlib.decompressobj(zlib.MAX_WBITS | 32).decompress, body)


def _bounded(decompress: Callable[[bytes, int], bytes], body: bytes) -> bytes:
    data = decompress(body, LARGEST + 1)
    if len(data) > LARGEST:
        raise Refused(f"the body takes more than {LARGEST} bytes when it is decompressed")
    return data


def _bzip2(body: bytes) -> bytes:
    return _bounded(bz2.BZ2Decompressor().decompress, body)


def _lzma(body: bytes) -> bytes:
    return _bounded(lzma.LZMADecompressor().decompress, body)


_OPENERS: dict[str, Callable[[bytes], bytes]] = {
    **dict.fromkeys(("application/x-gzip", "gzip", "zlib", "application/x-zlib"), _zlib),
    **dict.fromkeys(("application/x-bz2", "bzip2", "bzip"), _bzip2),
    **dict.fromkeys(("application/x-lzma", "lzma", "xz"), _lzma),
}


def plain(value: Any) -> Any:
    """Values as our own codec has them on the wire: kombu's marked ones as their text.

    A date is its ISO text, and becomes a date again where the function's parameter is annotated.
    """
    if isinstance(value, dict):
        if value.keys() == {"__type__", "__value__"}:
            return _marked(str(value["__type__"]), value["__value__"])
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, msgspec.msgpack.Ext):
        raise Refused(f"msgpack's extension {value.code} is not read; send plain values")
    return value


def _marked(kind: str, value: Any) -> Any:
    if kind == "bytes":
        return base64.b64encode(str(value).encode()).decode()
    if kind == "uuid" and isinstance(value, dict):
        try:
            return str(uuid.UUID(hex=str(value.get("hex"))))
        except ValueError as error:
            raise Refused(f"a UUID that is none: {error}") from None
    if kind in ("datetime", "date", "time", "decimal", "base64"):
        return value
    raise Refused(f"a value of kombu's type {kind!r}, which is the sender's own; send plain JSON")
