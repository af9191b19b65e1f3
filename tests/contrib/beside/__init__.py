"""Outlast beside Celery: real producers and real workers of Celery's, and workers of ours."""
