"""Explains a pod with ResourceClaims, for `egpu explain`: what it asks for, and where the extender would find it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from egpu.core.dra.asking import Asked, DeviceClasses, asked
from egpu.core.dra.choosing import Wish, request_of, takers, with_room
from egpu.core.dra.references import claim_names, single_node
from egpu.core.explain import Explanation, held, ranked
from egpu.core.placement.refusal import describe
from egpu.core.placement.requests import Request
from egpu.core.preemption.explaining import preemption_of
from egpu.core.preemption.objections import last_word
from egpu.core.preemption.scene import Scene
from egpu_base.api.devices import ResourceClaim
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import DoesNotFit, InvalidInput, NotSupported


def explain_claims(
    pod: Pod, claims: Mapping[str, ResourceClaim], device_classes: DeviceClasses, scene: Scene
) -> Explanation:
    """Explain a pod by its ResourceClaims (of its namespace, by name)."""
    details, waiting, missing = list[str](), list[Asked](), list[str]()
    book = scene.cache.device_claims
    for name in claim_names(pod):
        claim = claims.get(name)
        if claim is None:
            missing.append(name or "one that is not made from its template yet")
            continue
        if (given := book.allocation(claim.uid)) is not None:
            for request, container in given.containers.items():
                details += held(f"claim {name}, request {request}", container, given.node, scene.cache)
        elif claim.status.allocation is None:
            try:
                wanted = asked(claim, scene.cache.classes, device_classes)
            except (InvalidInput, NotSupported) as error:
                return _of(pod, "waiting", f"waits: the extender does not serve it: {error}", details)
            if wanted is not None:
                waiting.append(wanted)
                details += [
                    f"claim {name}, request {one} asks for {describe(what)}" for one, what in wanted.demands.items()
                ]
    if pod.finished:
        return _of(pod, "finished", "has ended; its claims are released", details)
    if pod.spec.node_name:
        return _of(pod, "placed", f"is on node {pod.spec.node_name}", details)
    if missing:
        return _of(pod, "waiting", f"waits for its claims: {', '.join(missing)}", details)
    if not waiting:
        return _of(pod, "waiting", "has all its cards; the scheduler binds it", details)
    if not book.priced_nodes():
        return _of(pod, "waiting", "waits for kube-scheduler, which alone gives cards to claims here", details)
    return _places(pod, claims, waiting, scene, details)


def _places(
    pod: Pod, claims: Mapping[str, ResourceClaim], waiting: Sequence[Asked], scene: Scene, details: Sequence[str]
) -> Explanation:
    book, own = scene.cache.device_claims, [claims[name] for name in claim_names(pod)]
    given = {one.name: allocation for one in own if (allocation := book.allocation(one.uid)) is not None}
    wish = Wish(pod, waiting, given, next((node for one in own if (node := single_node(one))), ""))
    request = request_of(wish, scene)
    nodes = [wish.node] if wish.node else list(book.priced_nodes())
    refusals = tuple(scene.cache.filter(request, nodes).refusals().values())
    try:
        fits = with_room(wish, request, scene)
    except DoesNotFit as error:
        said = "" if refusals else f": {error}"
        summary = f"waits: none of {len(nodes)} nodes whose cards the extender gives to claims has room for it{said}"
        found = _of(pod, "waiting", summary, details)
        return replace(found, refusals=refusals, preemption=_preemption(pod, request, scene))
    objections: list[str] = []
    takes = takers(pod, request, scene, objections)
    taking = [node for node in fits if takes(node)]
    against = tuple((node, why) for node, _, why in (one.partition(": ") for one in objections))
    if not taking:
        summary = f"waits: {len(fits)} of {len(nodes)} nodes have the cards; the scheduler would reject them"
        found = _of(pod, "waiting", summary, details)
        more = _preemption(pod, request, scene)
        return replace(found, refusals=refusals, objections=against, preemption=more)
    scores = ranked(scene.cache.ranking.scores(request, taking, scene.policies, all_fit=True))
    summary = f"is not placed yet; {len(taking)} of {len(nodes)} nodes have room for it"
    found = _of(pod, "can-be-placed", summary, details)
    return replace(found, refusals=refusals, objections=against, scores=scores)


def _preemption(pod: Pod, request: Request, scene: Scene) -> str:
    unmet = scene.cache.device_claims.unmet
    unmet[pod.uid] = request
    try:
        return preemption_of(pod, scene)
    finally:
        del unmet[pod.uid]


def _of(pod: Pod, state: str, summary: str, details: Sequence[str]) -> Explanation:
    word = "" if pod.spec.node_name else last_word(pod)
    return Explanation(pod.key, state, summary, tuple(details), scheduler=word)
