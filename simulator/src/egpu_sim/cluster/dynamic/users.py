"""The pods that name a claim, kept with each change of a pod: a change of a claim looks at no other pods."""

from collections.abc import Collection

from egpu_base.api.kubernetes import Pod
from egpu_base.kubernetes import Change
from egpu_sim.cluster.dynamic.references import pod_claims


class ClaimUsers:
    """UIDs of pods, by claim."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}

    def changed(self, change: Change[Pod]) -> None:
        """Take in a pod that came, went or changed."""
        old, new = change.old, change.new
        if old is not None:
            for key in _claims(old):
                self._users[key].discard(old.uid)
                if not self._users[key]:
                    del self._users[key]
        if new is not None:
            for key in _claims(new):
                self._users.setdefault(key, set()).add(new.uid)

    def of(self, claim: str) -> Collection[str]:
        """Return the UIDs of the pods that name a claim (`namespace/name`)."""
        return self._users.get(claim, ())


def _claims(pod: Pod) -> set[str]:
    return {f"{pod.namespace}/{one.claim}" for one in pod_claims(pod) if one.claim}
