"""Prints a bill of materials (CycloneDX 1.5, JSON): outlast and all that it needs to run."""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parent.with_name("requirements") / "ci.txt"


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The installed package and, by their own metadata, all that it needs here; extras left out."""
    key = canonicalize_name(name)
    if key not in found:
        found[key] = distribution(name)
        for text in found[key].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


def hashes() -> dict[str, list[str]]:
    """The SHA-256 digests by package and version, from the lock file."""
    blocks = re.split(r"^(?=\S+==)", LOCK.read_text(), flags=re.MULTILINE)[1:]
    return {block.split()[0]: re.findall(r"sha256:(\w{64})", block) for block in blocks}


def component(key: str, package: Distribution, digests: dict[str, list[str]]) -> dict[str, Any]:
    """One package. A lock holds the digest of each file of a release: any of them may be here."""
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{key}@{package.version}",
        "name": key,
        "version": package.version,
        "purl": f"pkg:pypi/{key}@{package.version}",
    }
    allowed = digests.get(f"{key}=={package.version}", [])
    if allowed:
        entry["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in allowed]
    if key == "apsw":
        import apsw

        version = apsw.sqlite_lib_version()
        entry["components"] = [{"type": "library", "name": "sqlite", "version": version}]
    return entry


def main() -> None:
    found = needed("outlast", {})
    digests = hashes()
    own = component("outlast", found.pop("outlast"), digests)
    parts = [component(key, package, digests) for key, package in sorted(found.items())]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": parts,
    }
    print(json.dumps(bill, indent=2))


if __name__ == "__main__":
    main()
