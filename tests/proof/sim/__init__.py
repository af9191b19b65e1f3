"""A whole world of producers, workers and a store in one thread, by one seed, in virtual time."""

from __future__ import annotations
