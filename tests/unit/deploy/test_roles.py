"""What our components' roles must never hold, whatever else they need."""

from typing import Any

import pytest
import yaml

from egpu_sim.cluster.apiserver.access.authorization import Wanted, covers
from egpu_sim.cluster.apiserver.access.default_roles import default_roles
from support.repository import of, text

RULES = [
    (f"{file}: {document['metadata']['name']}", rule)
    for file in of(".yaml", under="deploy/rbac/")
    for document in yaml.safe_load_all(text(file))
    for rule in document.get("rules", [])
] + [
    (role["metadata"]["name"], rule)
    for _, role in default_roles()
    for rule in role.get("rules", [])
    if role["metadata"]["name"] != "cluster-admin"
]


@pytest.mark.parametrize("subresource", ["exec", "attach", "portforward", "ephemeralcontainers"])
@pytest.mark.parametrize("verb", ["create", "get", "patch", "update"])
def test_nobody_but_administrators_runs_things_in_pods(verb: str, subresource: str) -> None:
    wanted = Wanted(verb, resource=f"pods/{subresource}", namespace="default", name="any")
    assert len(RULES) > 20
    allowed: list[Any] = [role for role, rule in RULES if covers(rule, wanted)]
    assert allowed == []
