"""Which pods of this node use a ResourceClaim. kubelet prepares a claim once, for the first of them, and tells us no
other. A program of any of them is in the claim's slice."""

from __future__ import annotations

from typing import Protocol

from egpu.apps.agent.slots.directories import SlotRecord
from egpu.core.dra.references import claim_names
from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Change
from egpu_base.kubernetes.reflector import Handler


class Pods(Protocol):
    """A reflector of the node's pods."""

    def on_change(self, handler: Handler[Pod]) -> None: ...


class ClaimUsers:
    """Follows the node's pods. Its answers may be asked for in other threads."""

    def __init__(self, pods: Pods) -> None:
        self._by_claim: dict[tuple[str, str], frozenset[str]] = {}
        """UIDs of pods by namespace and name of a claim."""
        pods.on_change(self._changed)

    def of(self, record: SlotRecord) -> frozenset[str]:
        """Return the UIDs of the pods that use a slot: its own pod, and all that name its ResourceClaim."""
        own = frozenset((record.pod_uid,))
        if record.resource_claim is None:
            return own
        return own | self._by_claim.get((record.namespace, record.resource_claim.name), frozenset())

    def _changed(self, change: Change[Pod]) -> None:
        uid, namespace = change.subject.uid, change.subject.namespace
        before = set(claim_names(change.old)) if change.old is not None else set[str]()
        after = set(claim_names(change.new)) if change.new is not None else set[str]()
        for name in before - after:
            left = self._by_claim.get((namespace, name), frozenset()) - {uid}
            if left:
                self._by_claim[namespace, name] = left
            else:
                self._by_claim.pop((namespace, name), None)
        for name in after - before:
            self._by_claim[namespace, name] = self._by_claim.get((namespace, name), frozenset()) | {uid}
