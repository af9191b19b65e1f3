"""The command line: the `outlast` program, one module for each group of commands."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the program on ``sys.argv`` and exit. The exit codes are in ``outlast --help``."""
    from outlast.cli.program import program

    program.main(prog_name="outlast")
