"""The pods that name a claim, after every change of a pod."""

from egpu_base.api.kubernetes import Pod, PodSpec, PodStatus
from egpu_base.api.objects import ObjectMeta
from egpu_base.kubernetes import Change
from egpu_sim.cluster.dynamic.users import ClaimUsers


def a_pod(name: str, *claims: str, generated: str = "", namespace: str = "ns") -> Pod:
    """A pod with claims that people made, and one of a template, which has a name once it is made."""
    listed = [{"name": one, "resourceClaimName": one} for one in claims]
    listed += [{"name": "own", "resourceClaimTemplateName": "template"}]
    made = [{"name": "own", "resourceClaimName": generated}] if generated else None
    meta = ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}")
    return Pod(metadata=meta, spec=PodSpec(resource_claims=listed), status=PodStatus(resource_claim_statuses=made))


def test_a_claim_has_the_pods_that_name_it() -> None:
    users = ClaimUsers()
    a, b, other = a_pod("a", "one", "two"), a_pod("b", "one"), a_pod("c", "one", namespace="other")
    for pod in (a, b, other):
        users.changed(Change(None, pod))
    assert set(users.of("ns/one")) == {"uid-a", "uid-b"}
    assert set(users.of("ns/two")) == {"uid-a"}
    assert set(users.of("ns/none")) == set()
    users.changed(Change(a, a_pod("a", "one", "two", generated="made")))
    assert set(users.of("ns/made")) == {"uid-a"}


def test_a_pod_that_is_gone_or_replaced_uses_nothing() -> None:
    users, a, b = ClaimUsers(), a_pod("a", "one"), a_pod("b", "one")
    users.changed(Change(None, a))
    users.changed(Change(None, b))
    users.changed(Change(a, None))
    assert set(users.of("ns/one")) == {"uid-b"}
    users.changed(Change(b, a_pod("b", "two")))
    assert set(users.of("ns/one")) == set()
    assert set(users.of("ns/two")) == {"uid-b"}
