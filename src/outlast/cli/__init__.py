"""The command line: the `outlast` program."""
