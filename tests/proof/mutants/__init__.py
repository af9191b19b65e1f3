"""Planted bugs: each breaks the product on purpose, and a test has to notice."""

from __future__ import annotations
