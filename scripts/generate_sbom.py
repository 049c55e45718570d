"""Write requirements/sbom.cdx.json, the software bill of materials (CycloneDX 1.6), from the lock files; with --check,
only say whether it is up to date.

Required is what the image has, optional what only other set-ups run with, excluded what only builds and tests. Names,
versions and hashes are those of the lock files; what is not Python (the base image's packages, the NVIDIA driver) is
chosen by whoever builds and runs an image, and not in it.

Usage: python scripts/generate_sbom.py [--check]
"""

import argparse
import json
import sys
import tomllib
import uuid
from typing import Any

from locks import DEV, IMAGE, MUTANTS, REQUIREMENTS, RUN, Pin, pins

TARGET = REQUIREMENTS / "sbom.cdx.json"
OURS = uuid.UUID("8d8ac610-566d-4ef0-9c22-186b2a5ed793")
"""A name space: the same lock files have the same serial number everywhere."""


def component(pin: Pin, scope: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{pin.name}@{pin.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": pin.name,
        "version": pin.version,
        "scope": scope,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": each} for each in pin.hashes],
    }


def rendered() -> str:
    project = tomllib.loads((REQUIREMENTS.parent / "pyproject.toml").read_text())["project"]
    image, run = set(pins(IMAGE)), set(pins(IMAGE, RUN))
    components = [
        component(pin, "required" if pin in image else "optional" if pin in run else "excluded")
        for pin in pins(IMAGE, RUN, DEV, MUTANTS)
    ]
    lines = ",\n".join(f"    {json.dumps(each)}" for each in components)
    ours = {
        "type": "application",
        "bom-ref": project["name"],
        "name": project["name"],
        "version": project["version"],
        "licenses": [{"license": {"id": project["license"]}}],
    }
    head = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(OURS, lines + json.dumps(ours))}",
        "version": 1,
        "metadata": {"component": ours},
    }
    text = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return f'{{\n{text}  "components": [\n{lines}\n  ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    text = rendered()
    if not check:
        TARGET.write_text(text)
    elif not TARGET.exists() or TARGET.read_text() != text:
        print(f"{TARGET} is not what the lock files have; run python scripts/generate_sbom.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
