"""Arguments, results and items to JSON bytes and back: as annotated, or refused. Data only."""

from __future__ import annotations

from outlast.codec.signature import Signature
from outlast.codec.values import ItemCodec

__all__ = ["ItemCodec", "Signature"]
