"""What the expressions of webhooks and policies can speak of (`cel` evaluates them)."""

from collections.abc import Mapping, Sequence
from typing import Any

from egpu.embedded.apiserver import cel
from egpu.embedded.apiserver.authorization import Authorizer, Wanted
from egpu.embedded.apiserver.calls import Write
from egpu.embedded.apiserver.objects import Json


def scope(write: Write, request: Json, authorizer: Authorizer) -> dict[str, Any]:
    """The variables for a write; `request` is what a webhook would be sent."""

    def ask(parts: Mapping[str, str]) -> bool:
        wanted = Wanted(parts.get("check", ""), parts.get("group", ""), parts.get("resource", ""))
        return authorizer.allows(write.call.user, wanted)

    return {
        "object": request["object"],
        "oldObject": write.old,
        "request": request,
        "authorizer": cel.Question(ask),
    }


def all_hold(conditions: Sequence[Json], scope: cel.Scope, variables: tuple[str, ...] = cel.VARIABLES) -> bool:
    """Whether every condition is true: no, if any is false; else raises EvaluationError where one cannot be told."""
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
