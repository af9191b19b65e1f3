"""One call on its way through the store's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from outlast.stores.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.stores.rabbitmq.engine import Engine

__all__ = ["Op"]

T = TypeVar("T")


class Op(Reply[T]):
    """``begin`` is called in the store's thread, and sees to it that the call is answered."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Engine, Op[T]], None]) -> None:
        super().__init__()
        self.begin = begin
