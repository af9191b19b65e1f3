"""Faults from the field, each with one right answer; named by their numbers."""
