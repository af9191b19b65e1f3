"""Prints the requirements of a dependency group, one a line, for a pip too old to read groups."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(groups: dict[str, list[str | dict[str, str]]], name: str) -> list[str]:
    """The group's requirements, those of the groups it includes among them."""
    found: list[str] = []
    for entry in groups[name]:
        if isinstance(entry, str):
            found.append(entry)
        else:
            found.extend(requirements(groups, entry["include-group"]))
    return found


def main() -> None:
    text = Path(__file__).parent.with_name("pyproject.toml").read_text()
    print("\n".join(requirements(tomllib.loads(text)["dependency-groups"], sys.argv[1])))


if __name__ == "__main__":
    main()
