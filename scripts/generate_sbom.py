"""requirements/sbom.cdx.json, the software bill of materials (CycloneDX 1.6), from the lock files.

Required are the image's packages, optional those of other set-ups only, excluded those for building and testing. Names,
versions and hashes are those of the lock files. Other parts (the base image's packages, the NVIDIA driver) depend on
the builder and user of an image, and are not listed.
"""

import json
import tomllib
import uuid
from pathlib import Path
from typing import Any

from locks import DEV, DOCS, IMAGE, MUTANTS, REQUIREMENTS, RUN, Pin, pins

TARGET = REQUIREMENTS / "sbom.cdx.json"
OURS = uuid.UUID("8d8ac610-566d-4ef0-9c22-186b2a5ed793")
"""A name space, so that the same lock files have the same serial number everywhere."""


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
        for pin in pins(IMAGE, RUN, DEV, MUTANTS, DOCS)
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


def files() -> dict[Path, str]:
    return {TARGET: rendered()}
