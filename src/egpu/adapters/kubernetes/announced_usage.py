"""Sources of GPU usage that a kubeconfig names beside its cluster, as an extension. `egpu up` writes it, so that `egpu
top` and `egpu bill` know what slices use without further options."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from egpu_base.system.files import write_atomically

_EXTENSION: Final = "elasticgpu.io/usage"


class UsageSources(msgspec.Struct, frozen=True, rename="camel"):
    """Addresses of agents' metrics or of a Prometheus, and the file with their bearer token."""

    urls: tuple[str, ...] = ()
    token_file: Path | None = None


def announce(kubeconfig: Path, sources: UsageSources) -> None:
    """Write the sources into the cluster of the kubeconfig's current context."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = _cluster(config)
    others = [one for one in cluster.get("extensions", []) if one["name"] != _EXTENSION]
    cluster["extensions"] = [*others, {"name": _EXTENSION, "extension": msgspec.to_builtins(sources, enc_hook=str)}]
    write_atomically(kubeconfig, yaml.safe_dump(config, sort_keys=False).encode(), mode=0o600)


def announced(kubeconfig: Path | None) -> UsageSources:
    """Return the sources that the kubeconfig names, none for a file without them. None: $KUBECONFIG or
    ~/.kube/config."""
    default = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or Path.home() / ".kube" / "config"
    try:
        cluster = _cluster(yaml.safe_load(Path(kubeconfig or default).read_text()))
        found = _named(cluster.get("extensions", []), _EXTENSION)["extension"]
        return msgspec.convert(found, UsageSources, dec_hook=lambda kind, value: kind(value))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return UsageSources()  # a kubeconfig that cannot be read is the client's error


def given_or_announced(urls: Sequence[str], token_file: Path | None, kubeconfig: Path | None) -> UsageSources:
    """Return the sources of the options, or else those of the kubeconfig."""
    return UsageSources(tuple(urls), token_file) if urls else announced(kubeconfig)


def _cluster(config: Any) -> dict[str, Any]:
    context = _named(config["contexts"], config["current-context"])["context"]
    return _named(config["clusters"], context["cluster"])["cluster"]


def _named(entries: Any, name: str) -> Any:
    return {entry["name"]: entry for entry in entries}[name]
