"""A container's environment: values, references to fields and keys, and $(NAME) expansion, as in Kubernetes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from egpu_base.api.quantities import parse_quantity
from egpu_base.errors import InvalidInput
from egpu_sim import native
from egpu_sim.cluster.kubelet.objects import Container, EnvVar, Pod, ResourceSelector, SourceRef, ValueFrom

TERMINAL = "xterm"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_KEYED = re.compile(r"^metadata\.(annotations|labels)\['(.+)'\]$")


@dataclass(frozen=True)
class Sources:
    """The ConfigMaps and Secrets that a pod names, already read; absent ones are not in the mappings."""

    config_maps: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict[str, Mapping[str, bytes]])
    secrets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict[str, Mapping[str, bytes]])


def environment(
    pod: Pod, container: Container, *, node_ip: str, devices: Mapping[str, str], sources: Sources
) -> dict[str, str]:
    """Return the process's environment; `devices` are the variables of device plugins' answers.

    Raises InvalidInput for a reference that cannot be resolved and is not optional.
    """
    path = native.search_path(DEFAULT_PATH)  # as NVIDIA's runtime puts its nvidia-smi into containers
    env = {"PATH": path, "HOSTNAME": pod.spec.hostname or pod.name, "HOME": "/root", **devices}
    if container.tty:
        env["TERM"] = TERMINAL
    for source in container.env_from or []:
        env |= _whole(source.prefix, source.config_map_ref, sources.config_maps, "configMapRef")
        env |= _whole(source.prefix, source.secret_ref, sources.secrets, "secretRef")
    for variable in container.env or []:
        value = _value(pod, container, variable, node_ip=node_ip, sources=sources)
        if value is not None:
            env[variable.name] = expand(value, env) if variable.value_from is None else value
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expand $(NAME) to the variable's value and $$ to one dollar sign; an unknown name stays as it is."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        return env.get(name, match.group(0))

    return _REFERENCE.sub(replacement, text)


def references(text: str) -> set[str]:
    """Return the names that a text refers to as $(NAME)."""
    return {name for name in _REFERENCE.findall(text) if name}


def expand_all(words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    return [expand(word, env) for word in words]


def named_sources(pod: Pod) -> tuple[set[str], set[str]]:
    """Return the names of the ConfigMaps and of the Secrets that any container's environment refers to."""
    maps: set[str] = set()
    secrets: set[str] = set()
    for container in [*pod.init_containers, *pod.containers]:
        for source in container.env_from or []:
            maps |= {source.config_map_ref.name} if source.config_map_ref else set[str]()
            secrets |= {source.secret_ref.name} if source.secret_ref else set[str]()
        for variable in container.env or []:
            origin = variable.value_from
            if origin is not None:
                maps |= {origin.config_map_key_ref.name} if origin.config_map_key_ref else set[str]()
                secrets |= {origin.secret_key_ref.name} if origin.secret_key_ref else set[str]()
    return maps, secrets


def _whole(prefix: str, ref: SourceRef | None, found: Mapping[str, Mapping[str, bytes]], kind: str) -> dict[str, str]:
    if ref is None:
        return {}
    if ref.name not in found:
        if ref.optional:
            return {}
        raise InvalidInput(f"envFrom.{kind}", f"{ref.name!r} was not found")
    return {prefix + key: _text(value, f"envFrom.{kind}") for key, value in found[ref.name].items()}


def _text(value: bytes, where: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(where, "a value is no text; mount it as a file") from error


def _value(pod: Pod, container: Container, variable: EnvVar, *, node_ip: str, sources: Sources) -> str | None:
    origin = variable.value_from
    if origin is None:
        return variable.value
    where = f"env[{variable.name}].valueFrom"
    if origin.field_ref is not None:
        return pod_field(pod, origin.field_ref.field_path, node_ip=node_ip, where=where)
    if origin.config_map_key_ref is not None or origin.secret_key_ref is not None:
        return _key(origin, sources, where)
    if origin.resource_field_ref is not None:
        return amount(container, origin.resource_field_ref, where)
    raise InvalidInput(where, "names no source")


def pod_field(pod: Pod, path: str, *, node_ip: str, where: str) -> str:
    """Return a field of the pod, for a variable or a file. Raises InvalidInput for another field."""
    if path in ("metadata.annotations", "metadata.labels"):
        whole = pod.metadata.annotations if path.endswith("annotations") else pod.metadata.labels
        return "\n".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in sorted((whole or {}).items()))
    keyed = _KEYED.match(path)
    if keyed:
        kind, key = keyed.groups()
        found = pod.metadata.annotations if kind == "annotations" else pod.metadata.labels
        return (found or {}).get(key, "")
    values = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name or "default",
        "status.podIP": node_ip,
        "status.podIPs": node_ip,
        "status.hostIP": node_ip,
        "status.hostIPs": node_ip,
    }
    if path not in values:
        raise InvalidInput(where, f"fieldPath {path!r} is not one of {', '.join(values)}")
    return values[path]


def _key(origin: ValueFrom, sources: Sources, where: str) -> str | None:
    selector = origin.config_map_key_ref or origin.secret_key_ref
    assert selector is not None
    found = sources.config_maps if origin.config_map_key_ref is not None else sources.secrets
    value = found.get(selector.name, {}).get(selector.key)
    if value is None and not selector.optional:
        raise InvalidInput(where, f"key {selector.key!r} of {selector.name!r} was not found")
    return None if value is None else _text(value, where)


def amount(container: Container, selector: ResourceSelector, where: str) -> str:
    """Return a limit or request in units of the divisor, rounded up. Raises InvalidInput."""
    resource = selector.resource
    kind, _, name = resource.partition(".")
    requirements = container.resources
    found = None if requirements is None else (requirements.limits if kind == "limits" else requirements.requests)
    if kind not in ("limits", "requests") or found is None or name not in found:
        raise InvalidInput(where, f"resource {resource!r} is not set on container {container.name}")
    divisor = parse_quantity(selector.divisor, field=where) if selector.divisor else 0
    return str(math.ceil(parse_quantity(found[name], field=where) / (divisor or 1)))
