"""What the doctor finds, on real files that were made ill on purpose."""
