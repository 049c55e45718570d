"""Variables of the expressions of webhooks and policies (`cel` evaluates them)."""

from collections.abc import Mapping, Sequence
from typing import Any

from egpu_base.cel import grammar as cel
from egpu_sim.cluster.apiserver.access.authorization import Authorizer, Wanted
from egpu_sim.cluster.apiserver.calls import Write
from egpu_sim.cluster.trees import Json


def scope(write: Write, request: Json, authorizer: Authorizer) -> dict[str, Any]:
    """Return the variables for a write; `request` is the request of a webhook's review."""

    def ask(parts: Mapping[str, str]) -> bool:
        resource = "/".join(part for part in (parts.get("resource"), parts.get("subresource")) if part)
        wanted = Wanted(parts.get("check", ""), parts.get("group", ""), resource)
        return authorizer.allows(write.call.user, wanted)

    return {
        "object": request["object"],
        "oldObject": write.old,
        "request": request,
        "authorizer": cel.Question(ask),
    }


def all_hold(conditions: Sequence[Json], scope: cel.Scope, variables: tuple[str, ...] = cel.VARIABLES) -> bool:
    """Return whether every condition is true. Any false one decides; else raises EvaluationError for one that fails."""
    failed: cel.EvaluationError | None = None
    for condition in conditions:
        try:
            if not cel.compiled(str(condition.get("expression")), variables)(scope):
                return False
        except cel.EvaluationError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return True
