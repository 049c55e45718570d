"""Print the bill of materials (CycloneDX 1.6) of an image, from what was put into it.

PACKAGES lists Debian's package files, such as libssl3_3.0.17-1~deb12u2_amd64.deb. SITE is the folder with the installed
Python packages. The same contents give the same bytes: there is no time, and the serial number is a digest.

Usage: python sbom.py PACKAGES SITE
"""

import json
import sys
import uuid
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

OURS: Final = uuid.UUID("8d8ac610-566d-4ef0-9c22-186b2a5ed793")
"""The name space of serial numbers."""
RELEASE: Final = "bookworm"


def debian(files: Iterable[str]) -> list[dict[str, Any]]:
    """Return the components of Debian's package files. Raises ValueError for a name that is no package file's."""
    found: list[dict[str, Any]] = []
    for file in files:
        if not file.endswith(".deb"):
            continue
        name, version, architecture = file.removesuffix(".deb").split("_")
        version = unquote(version)  # apt writes an epoch's colon as %3a
        purl = f"pkg:deb/debian/{name}@{quote(version, safe='')}?arch={architecture}&distro={RELEASE}"
        found.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return found


def python(site: Path) -> list[dict[str, Any]]:
    """Return the components of the Python packages in a folder."""
    found: list[dict[str, Any]] = []
    for one in distributions(path=[str(site)]):
        name = one.metadata["Name"].lower().replace("_", "-")
        purl = f"pkg:pypi/{name}@{one.version}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": one.version, "purl": purl}
        if license_ := one.metadata.get("License-Expression"):
            component["licenses"] = [{"expression": license_}]
        found.append(component)
    return found


def bill(components: Iterable[dict[str, Any]], version: str) -> str:
    """Return the document. Its subject is the image of this version."""
    listed = sorted(components, key=lambda one: one["bom-ref"])
    ours = {"type": "container", "bom-ref": "elastic-gpu-image", "name": "elastic-gpu", "version": version}
    serial = uuid.uuid5(OURS, json.dumps([ours, listed], sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return json.dumps({**head, "metadata": {"component": ours}, "components": listed}, indent=1) + "\n"


if __name__ == "__main__":
    packages = debian(Path(sys.argv[1]).read_text().split())
    installed = python(Path(sys.argv[2]))
    if not packages or not installed:
        sys.exit(f"{sys.argv[1]} has {len(packages)} packages, {sys.argv[2]} has {len(installed)}: each must have some")
    (version,) = (one["version"] for one in installed if one["name"] == "elastic-gpu")
    sys.stdout.write(bill([*packages, *installed], version))
