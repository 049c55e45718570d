"""Look up every pinned package among known vulnerabilities, those in requirements/advisories.json, without a network.

The file is an excerpt (identifiers and affected versions of packages that we pin) of the PyPA advisory database, which
is CC-BY-4.0. Each run prints its age: later advisories are not found. An affected pin fails the check, unless ACCEPTED
has a reason for it. A package that was not pinned when the file was made is listed as not looked up.

Usage: python scripts/audit.py
       python scripts/audit.py --update DIRECTORY     from a git clone of github.com/pypa/advisory-database
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import yaml
from locks import DEV, DOCS, IMAGE, MUTANTS, REQUIREMENTS, RUN, Pin, normalised, pins
from packaging.version import Version

DATA: Final = REQUIREMENTS / "advisories.json"
ACCEPTED: Final[Mapping[str, str]] = {}
"""Advisories that do not concern us, by identifier, each with the reason."""


def affected(pin: Pin, advisory: Mapping[str, Any]) -> bool:
    """Return whether an advisory of this package names its version."""
    version = Version(pin.version)
    return pin.version in advisory["versions"] or any(
        (start == "0" or version >= Version(start)) and (end is None or version < Version(end))
        for start, end in advisory["ranges"]
    )


def found(pinned: Iterable[Pin], advisories: Iterable[Mapping[str, Any]]) -> list[tuple[Pin, str]]:
    """Return affected pins, with the advisory's names, without accepted ones."""
    return [
        (pin, ", ".join([advisory["id"], *advisory["aliases"]]))
        for pin in pinned
        for advisory in advisories
        if advisory["package"] == pin.name and advisory["id"] not in ACCEPTED and affected(pin, advisory)
    ]


def report(pinned: list[Pin], data: Mapping[str, Any], today: date) -> tuple[int, list[str]]:
    """Return the exit status, and the lines to print."""
    age = (today - date.fromisoformat(data["asOf"])).days
    unknown = [pin for pin in pinned if pin.name not in data["packages"]]
    looked_up = [pin for pin in pinned if pin.name in data["packages"]]
    bad = found(looked_up, data["advisories"])
    lines = [f"{pin.name} {pin.version}: {names}" for pin, names in bad]
    lines += [f"not looked up, the data is older than the pin: {pin.name} {pin.version}" for pin in unknown]
    lines.append(
        f"{len(looked_up)} pinned packages, {len(data['advisories'])} advisories as of {data['asOf']}, {age} days old: "
        f"{len(bad)} affected; later advisories are not included"
    )
    return (1 if bad else 0), lines


def excerpt(directory: Path, pinned: list[Pin]) -> dict[str, Any]:
    """Return a clone's advisories of the packages that we pin."""
    log = ["git", "-C", str(directory), "log", "-1", "--format=%cI"]
    changed = subprocess.run(log, capture_output=True, check=True, text=True).stdout.strip()
    names = sorted({pin.name for pin in pinned})
    folders = {normalised(folder.name): folder for folder in (directory / "vulns").iterdir()}
    advisories = [
        one
        for name in names
        if name in folders
        for file in sorted(folders[name].glob("*.yaml"))
        if (one := advisory_of(name, yaml.safe_load(file.read_text()))) is not None
    ]
    as_of = datetime.fromisoformat(changed).astimezone(UTC).date().isoformat()
    source = "PyPA advisory database (CC-BY-4.0), identifiers and affected versions"
    return {"source": source, "asOf": as_of, "packages": names, "advisories": advisories}


def advisory_of(name: str, said: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return one entry of the database in our form; None for a withdrawn one."""
    if "withdrawn" in said:
        return None
    ranges: list[tuple[str, str | None]] = []
    versions: list[str] = []
    for package in said["affected"]:
        of_versions = [each for each in package.get("ranges", ()) if each["type"] == "ECOSYSTEM"]
        for each in of_versions:
            start: str | None = None
            for event in each["events"]:
                if "introduced" in event:
                    start = str(event["introduced"])
                elif "fixed" in event and start is not None:
                    ranges.append((start, str(event["fixed"])))
                    start = None
            if start is not None:
                ranges.append((start, None))
        if not of_versions:
            versions += map(str, package.get("versions", ()))
    return {
        "id": said["id"], "aliases": said.get("aliases", []), "package": name, "ranges": ranges, "versions": versions
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", type=Path, metavar="DIRECTORY")
    update: Path | None = parser.parse_args().update
    pinned = pins(IMAGE, RUN, DEV, MUTANTS, DOCS)
    if update is not None:
        made = excerpt(update, pinned)
        entries = ",\n".join(f"    {json.dumps(each)}" for each in made.pop("advisories"))
        head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in made.items())
        DATA.write_text(f'{{\n{head}  "advisories": [\n{entries}\n  ]\n}}\n')
    status, lines = report(pinned, json.loads(DATA.read_text()), datetime.now(UTC).date())
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
