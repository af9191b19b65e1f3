"""Outlast for Celery's users: beside it, and instead of it."""
