"""Celery on our transport: real workers, and the tests of kombu and Celery themselves."""
