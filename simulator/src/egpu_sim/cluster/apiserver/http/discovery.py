"""Discovery: the groups, versions and resources; the legacy documents and the aggregated one."""

from egpu_sim.cluster.apiserver.kinds.resources import Registry, Resource
from egpu_sim.cluster.trees import Json

VERSION: Json = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+egpu",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
"""The Kubernetes minor whose API this server follows; `+egpu` tells it from Kubernetes."""


def api_versions(address: str) -> Json:
    """Return /api."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(registry: Registry) -> Json:
    """Return /apis."""
    groups = [_group(name, versions) for name, versions in registry.groups().items() if name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(registry: Registry, name: str) -> Json | None:
    """Return /apis/GROUP."""
    versions = registry.groups().get(name)
    return None if versions is None else {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> Json:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def resource_list(registry: Registry, group_name: str, version: str) -> Json:
    """Return /api/v1 or /apis/GROUP/VERSION."""
    entries: list[Json] = []
    for resource in registry.of_version(group_name, version):
        entries.append(_legacy(resource))
        entries.extend(
            {
                "name": f"{resource.plural}/{sub.name}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": sub.kind,
                "verbs": list(sub.verbs),
                **({"group": sub.group, "version": sub.version} if sub.group else {}),
            }
            for sub in resource.subresources
        )
    group_version = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _legacy(resource: Resource) -> Json:
    entry: Json = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    return entry


def aggregated(registry: Registry, *, core: bool, version: str) -> Json:
    """Return /api or /apis as one `APIGroupDiscoveryList` (apidiscovery.k8s.io; v2 and v2beta1 have the same shape)."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name, "creationTimestamp": None},
                "versions": [
                    {
                        "version": served,
                        "freshness": "Current",
                        "resources": [_aggregated(resource) for resource in registry.of_version(name, served)],
                    }
                    for served in versions
                ],
            }
            for name, versions in registry.groups().items()
            if (name == "") == core
        ],
    }


def _aggregated(resource: Resource) -> Json:
    entry: Json = {
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {
                    "group": sub.group or resource.group,
                    "version": sub.version or resource.version,
                    "kind": sub.kind,
                },
                "verbs": list(sub.verbs),
            }
            for sub in resource.subresources
        ]
    return entry
