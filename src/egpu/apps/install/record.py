"""What was installed: a ConfigMap in our namespace with the version and the values, for upgrade and uninstallation."""

from dataclasses import dataclass
from typing import Final

import msgspec
import yaml

import egpu
from egpu.adapters.installation import Document
from egpu.adapters.values import Values, parse
from egpu.apps.install.objects import KINDS, Objects

NAME: Final = "elastic-gpu-installation"


@dataclass(frozen=True)
class Record:
    """The version, the values and the image reference (empty: that of the values) of an installation."""

    version: str
    values: Values
    image: str = ""


def record(values: Values, *, namespace: str, image: str) -> Document:
    """Return the ConfigMap of an installation of this version."""
    text = yaml.safe_dump(msgspec.to_builtins(values), sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "elastic-gpu"}},
        "data": {"version": egpu.__version__, "values.yaml": text, "image": image},
    }


async def read_record(objects: Objects, namespace: str) -> Record | None:
    """Return the record of the namespace, or None. Raises InvalidInput if its values are not ours."""
    found = await objects.get(KINDS["ConfigMap"].path(namespace, NAME))
    if found is None:
        return None
    data = found.get("data", {})
    values = parse(data.get("values.yaml", ""), what=f"ConfigMap {NAME}")
    return Record(data.get("version", ""), values, data.get("image", ""))
