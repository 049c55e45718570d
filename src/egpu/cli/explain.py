"""`egpu explain pod NAME`: why a pod waits, card by card, or why it landed where it did."""

from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from egpu.cli.components import Kubeconfig
from egpu.cli.output import Format, fail, say, show_value
from egpu.cli.snapshot import Snapshot, load_from
from egpu.core.explain import Explanation
from egpu.core.policies.registry import Policies
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene

COLOURS = {"waiting": "yellow", "invalid": "red", "placed": "green", "finished": "green"}


class What(StrEnum):
    """What can be explained."""

    POD = "pod"


def explain(
    what: Annotated[What, typer.Argument(help="pod")],
    name: Annotated[str, typer.Argument(help="Name of the pod, or NAMESPACE/NAME.")],
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Namespace of the pod.")] = "default",
    node_policy: Annotated[str, typer.Option(help="Score nodes as an extender with this policy.")] = "default",
    card_policy: Annotated[str, typer.Option(help="Likewise for cards.")] = "default",
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table (for people), json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Why a pod waits, card by card, and whom it would evict; or why it landed where it did."""
    assert what is What.POD
    if "/" in name:
        namespace, _, name = name.partition("/")
    policies = Policies.named(node_policy, card_policy)
    explanation = explain_in(load_from(kubeconfig, as_extender=True), namespace, name, policies=policies)
    if explanation is None:
        fail(f"there is no pod {name} in namespace {namespace}; see: egpu get pods")
    if output.for_people:
        print_explanation(explanation)
    else:
        show_value(msgspec.to_builtins(explanation), output)


def explain_in(snapshot: Snapshot, namespace: str, name: str, *, policies: Policies) -> Explanation | None:
    """The explanation of one pod of a snapshot, or None when there is no such pod."""
    pod = next((pod for pod in snapshot.pods if (pod.namespace, pod.name) == (namespace, name)), None)
    if pod is None:
        return None
    nodes = {node.name: node for node in snapshot.nodes}
    scene = Scene(snapshot.cache, nodes, Population.of(snapshot.pods), snapshot.budgets, policies)
    return explain_with_preemption(pod, scene)


def print_explanation(explanation: Explanation) -> None:
    """The explanation for people, on stdout."""
    first, *rest = explanation.lines()
    say(first, style=COLOURS.get(explanation.state, ""))
    for line in rest:
        say(line)
