"""`egpu explain KIND NAME`: reasons why a pod or claim waits, card by card, or why it got its cards; a node's cards."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import msgspec
import typer

from egpu.api import names
from egpu.cli.components import Kubeconfig
from egpu.cli.delays import delays_from
from egpu.cli.output import Format, fail, note, say, show_value
from egpu.cli.own_words import own_words
from egpu.cli.snapshot import Snapshot, load_allowed_from
from egpu.core.dra.explaining import explain_claims
from egpu.core.explain import Explanation
from egpu.core.explain_claim import explain_claim
from egpu.core.explain_node import explain_node
from egpu.core.new_nodes import Stock, growth
from egpu.core.policies.registry import Policies
from egpu.core.preemption.explaining import explain_with_preemption
from egpu.core.preemption.population import Population
from egpu.core.preemption.scene import Scene
from egpu_base.api.kubernetes import Pod

_STATES = {
    "green": ("placed", "finished", "bound", "open"),
    "yellow": ("waiting", "pending", "closed"),
    "red": ("invalid", "lost"),
}
COLOURS = {state: colour for colour, states in _STATES.items() for state in states}
"""By the states of pods, claims and nodes."""


class What(StrEnum):
    """The kinds that `egpu explain` explains."""

    POD = "pod"
    CLAIM = "claim"
    NODE = "node"


def explain(
    what: Annotated[What, typer.Argument(help="The kind: pod, claim or node.")],
    name: Annotated[str, typer.Argument(help="Name of the object, or NAMESPACE/NAME.")],
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[
        str | None,
        typer.Option("-n", "--namespace", help="Namespace of the pod or claim. Default: the kubeconfig's."),
    ] = None,
    node_policy: Annotated[str, typer.Option(help="Policy that ranks nodes, as set on the extender.")] = "default",
    card_policy: Annotated[str, typer.Option(help="Policy that ranks cards, as set on the extender.")] = "default",
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table (for people), json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Explain why a pod or claim waits, or why it got its cards. For a node, list the slices on its cards.

    For a waiting pod, the answer has a reason for each card, pods to evict for it, and new nodes that would help.
    """
    if "/" in name and what is not What.NODE:
        namespace, _, name = name.partition("/")
    policies = Policies.named(node_policy, card_policy)
    snapshot = load_allowed_from(kubeconfig, namespace, as_extender=True)
    namespace = namespace or snapshot.home
    match what:
        case _ if snapshot.missing:
            explanation = own_words(snapshot, what.value, namespace, name)
        case What.POD:
            explanation = explain_with_growth(snapshot, namespace, name, policies=policies)
            if explanation is not None and explanation.state == "placed":
                delays = delays_from(kubeconfig, namespace, name)
                explanation = replace(explanation, details=(*explanation.details, *delays))
        case What.CLAIM:
            explanation = _claim_in(snapshot, namespace, name, policies=policies)
        case What.NODE:
            explanation = _node_in(snapshot, name)
    if snapshot.lack:
        note(f"{snapshot.lack}; reasons card by card need all of them", label="not shown:", style="yellow")
    if explanation is None:
        where = "the cluster" if what is What.NODE else f"namespace {namespace}"
        fail(f"{where} has no {what} {name}. `egpu get {what}s` lists what there is")
    if output.for_people:
        print_explanation(explanation)
    else:
        show_value(msgspec.to_builtins(explanation), output)


def explain_with_growth(snapshot: Snapshot, namespace: str, name: str, *, policies: Policies) -> Explanation | None:
    """Explain a pod; for one that waits and holds no cards, add which new nodes would help."""
    found = explain_in(snapshot, namespace, name, policies=policies)
    pod = _pod_of(snapshot, namespace, name)
    if found is None or pod is None or found.state != "waiting" or pod.spec.node_name or pod.spec.resource_claims:
        return found
    stock = Stock(snapshot.nodes, snapshot.gpus, snapshot.classes, snapshot.claims, snapshot.pods)
    return replace(found, growth=growth(pod, stock, policies))


def _pod_of(snapshot: Snapshot, namespace: str, name: str) -> Pod | None:
    return next((pod for pod in snapshot.pods if (pod.namespace, pod.name) == (namespace, name)), None)


def explain_in(snapshot: Snapshot, namespace: str, name: str, *, policies: Policies) -> Explanation | None:
    """Return the explanation of one pod of a snapshot, or None without such a pod."""
    pod = _pod_of(snapshot, namespace, name)
    if pod is None:
        return None
    nodes = {node.name: node for node in snapshot.nodes}
    scene = Scene(snapshot.cache, nodes, Population.of(snapshot.pods), snapshot.budgets, policies)
    if pod.spec.resource_claims and names.DEMAND not in pod.annotations:
        claims = {one.name: one for one in snapshot.all_resource_claims if one.namespace == namespace}
        kinds = {one.name: one for one in snapshot.device_classes}
        return explain_claims(pod, claims, kinds.get, scene)
    return explain_with_preemption(pod, scene)


def _claim_in(snapshot: Snapshot, namespace: str, name: str, *, policies: Policies) -> Explanation | None:
    claim = next((one for one in snapshot.claims if (one.namespace, one.name) == (namespace, name)), None)
    nodes = sorted({*(node.name for node in snapshot.nodes), *snapshot.cache.ledger.nodes()})
    return None if claim is None else explain_claim(claim, snapshot.cache, nodes, policies)


def _node_in(snapshot: Snapshot, name: str) -> Explanation | None:
    node = next((one for one in snapshot.nodes if one.name == name), None)
    return None if node is None else explain_node(node, snapshot.cache, snapshot.pods)


def print_explanation(explanation: Explanation) -> None:
    """Print the explanation for people on stdout."""
    first, *rest = explanation.lines()
    say(first, style=COLOURS.get(explanation.state, ""))
    for line in rest:
        say(line)
