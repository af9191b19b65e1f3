"""What was found: each finding with what was read, what it means and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Finding", "Report", "Severity"]


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Nobody could tell, or it is good to know."""
    WARNING = "warning"
    """It weakens the deployment, or will."""
    ERROR = "error"
    """Jobs can be lost, or are stuck already."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    ``durability`` is the best class that is left because of it, or None if it doesn't matter for
    that.
    """

    id: str
    severity: Severity
    read: str
    means: str = ""
    remedy: str = ""
    durability: Durability | None = None


class Report(Struct, frozen=True, kw_only=True):
    """All findings about one store.

    ``accepted`` and ``completed`` say what a job survives once ``enqueue`` has returned, and what
    its completion survives; None if that can't be told.
    """

    url: str
    required: Durability
    findings: tuple[Finding, ...]
    reached: bool = True

    @property
    def accepted(self) -> Durability | None:
        """The weakest of what was found."""
        classes = [f.durability for f in self.findings if f.durability is not None]
        return min(classes) if self.reached and classes else None

    @property
    def completed(self) -> Durability | None:
        """On SQLite a completion is committed as an acceptance is."""
        return self.accepted

    @property
    def exit_code(self) -> int:
        """0 fine, 1 weaker than required or broken, 2 can't tell, 3 unreachable."""
        if not self.reached:
            return 3
        if self.accepted is None:
            return 2
        bad = any(finding.severity is Severity.ERROR for finding in self.findings)
        return int(bad or self.accepted < self.required)

    def worst(self) -> Sequence[Finding]:
        """What isn't fine, the worst first."""
        order = list(Severity)
        found = [finding for finding in self.findings if finding.severity is not Severity.OK]
        return sorted(found, key=lambda finding: -order.index(finding.severity))
