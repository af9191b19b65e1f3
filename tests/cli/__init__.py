"""The command line, run in this process where that is the same, and as a real process where not."""
