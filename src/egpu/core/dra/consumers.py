"""The consumers of ResourceClaims that have cards: which claims are free once some pods are gone."""

from collections.abc import Collection, Set

from egpu_base.api.devices import ResourceClaim


class Consumers:
    """The consumers of claims, and the claims of consumers, by UID. A consumer is a pod, or something else that keeps
    the claim whatever pods end."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[str]] = {}
        self._claims: dict[str, set[str]] = {}

    def changed(self, uid: str, claim: ResourceClaim | None) -> None:
        """Record the claim with this UID as it is now; None for one without cards."""
        reserved = (claim.status.reserved_for or ()) if claim is not None else ()
        now = frozenset(one.uid for one in reserved)
        before = self._of.pop(uid, frozenset[str]())
        if now:
            self._of[uid] = now
        for consumer in before - now:
            self._claims[consumer].discard(uid)
            if not self._claims[consumer]:
                del self._claims[consumer]
        for consumer in now - before:
            self._claims.setdefault(consumer, set()).add(uid)

    def claims(self, consumer: str) -> Set[str]:
        """Return the claims of a consumer."""
        return self._claims.get(consumer, frozenset())

    def freed_by(self, ending: Collection[str], gone: Set[str]) -> list[str]:
        """Return the claims of the consumers that are `ending` and that no one else uses, apart from those `gone`."""
        found = {claim for consumer in ending for claim in self.claims(consumer)}
        return sorted(claim for claim in found if self._of[claim] <= gone | {*ending})
