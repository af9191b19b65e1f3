"""A measured figure: how much, beside which yardstick, and how far above its floor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["COLUMNS", "Figure", "at_most", "beside"]

COLUMNS = ("what", "outlast", "yardstick", "ratio", "floor", "")
_SMALLEST = 1e-9


@dataclass(frozen=True)
class Figure:
    """A row of the table.

    ``ratio`` is outlast's figure divided by the yardstick's. ``margin`` is how many times as good
    as its floor asks the figure is: below 1 the floor is missed; None where there is no floor.
    """

    what: str
    outlast: str
    yardstick: str = ""
    ratio: float | None = None
    floor: str = ""
    margin: float | None = None

    @property
    def ok(self) -> bool | None:
        """Whether the floor is reached; None where there is none."""
        return None if self.margin is None else self.margin >= 1

    def cells(self) -> tuple[str, ...]:
        """The row as texts, in the order of ``COLUMNS``."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        passed = {None: "", True: "pass", False: "FAIL"}[self.ok]
        return (self.what, self.outlast, self.yardstick, ratio, self.floor, passed)

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            "what": self.what,
            "outlast": self.outlast,
            "yardstick": self.yardstick,
            "ratio": self.ratio,
            "floor": self.floor,
            "margin": self.margin,
            "ok": self.ok,
        }


def at_most(limit: float, value: float) -> float:
    """The margin of a value that may be ``limit`` at most."""
    return limit / max(value, _SMALLEST)


def beside(
    what: str,
    ours: float,
    yardstick: float,
    *,
    floor: str = "",
    margin: float | None = None,
    least: float | None = None,
) -> Figure:
    """Two rates a second. ``least`` is the floor of their ratio, where it is as plain as that."""
    ratio = ours / yardstick
    if least is not None:
        floor, margin = floor or f"{least:.2f}", ratio / least
    return Figure(what, f"{ours:,.0f}/s", f"{yardstick:,.0f}/s", ratio, floor, margin)
