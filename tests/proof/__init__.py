"""The proof: kills, power cuts, injected faults and planted bugs, judged by one checker."""

from __future__ import annotations
