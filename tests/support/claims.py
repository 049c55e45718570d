"""Classes, claims and their users as manifests, for tests on a whole cluster."""

from collections.abc import Mapping
from typing import Any

from egpu.api import names


def a_class(
    name: str,
    provisioner: str,
    mode: str = "Immediate",
    reclaim: str = "Delete",
    parameters: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPUClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "parameters": dict(parameters or {}),
        "reclaimPolicy": reclaim,
        "eGPUBindingMode": mode,
    }


def a_claim(name: str, klass: str, core: int = 30, memory_mib: int = 1024) -> dict[str, Any]:
    asks = {names.GPU_CORE: core, names.GPU_MEMORY: memory_mib}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticGPUClaim",
        "metadata": {"name": name},
        "spec": {"elasticGPUClassName": klass, "resources": {"requests": asks}},
    }


def using(claim: str) -> dict[str, str]:
    """The annotation of a pod whose container `app` uses the claim."""
    return {f"{names.CLAIM_PREFIXES[0]}app": claim}
