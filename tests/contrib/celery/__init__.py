"""Beside Celery, and instead of it."""
