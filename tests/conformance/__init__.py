"""One file for each promise of the store protocol; every store passes the same suite."""
