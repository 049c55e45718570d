"""What pods ask of their nodes, as Kubernetes counts it."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from egpu_base.api import kubernetes
from egpu_base.api.quantities import parse_quantity
from egpu_base.api.resources import container_requests, effective_requests, whole_units
from egpu_sim.cluster.kubelet import objects


def asks(name: str, *, restart: str | None = None, **requests: object) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests}} | ({"restartPolicy": restart} if restart else {})


def pod(**spec: Any) -> kubernetes.Pod:
    return msgspec.convert({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, kubernetes.Pod)


def test_the_larger_of_what_starting_and_what_running_needs() -> None:
    found = effective_requests(
        pod(
            initContainers=[asks("side", restart="Always", cpu="100m", memory="1Gi"), asks("init", cpu="1")],
            containers=[asks("a", cpu="300m"), asks("b", cpu="200m", memory="1Mi")],
        )
    )
    # CPU: 100m of the sidecar and 1 of the init container, more than 100m + 300m + 200m
    assert found == {"cpu": Fraction(11, 10), "memory": Fraction(2**30 + 2**20), "pods": 1}


def test_an_init_container_runs_beside_the_sidecars_before_it_only() -> None:
    late = pod(
        initContainers=[asks("init", cpu=4), asks("side", restart="Always", cpu=1)], containers=[asks("a", cpu=2)]
    )
    early = pod(
        initContainers=[asks("side", restart="Always", cpu=1), asks("init", cpu=4)], containers=[asks("a", cpu=2)]
    )
    assert effective_requests(late)["cpu"] == 4
    assert effective_requests(early)["cpu"] == 5


def test_a_limit_without_a_request_counts_and_what_is_no_quantity_does_not() -> None:
    (container,) = pod(
        containers=[
            {"name": "a", "resources": {"limits": {"cpu": "1", "x/y": "2"}, "requests": {"x/y": "1", "z": "?"}}}
        ]
    ).containers
    assert container_requests(container) == {"cpu": 1, "x/y": 1, "z": 0}
    assert effective_requests(pod(containers=[{"name": "a"}])) == {"pods": 1}


def test_the_kubelets_wider_pods_are_counted_alike() -> None:
    spec = {"initContainers": [asks("i", cpu=3)], "containers": [asks("a", cpu=1), asks("b", cpu=1)]}
    wide = msgspec.convert({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}, objects.Pod)
    assert effective_requests(wide) == effective_requests(pod(**spec)) == {"cpu": 3, "pods": 1}


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("cpu", "250m", 250),
        ("cpu", 2, 2000),
        ("cpu", "100u", 1),
        ("memory", "1Ki", 1024),
        ("memory", "1.5Gi", 3 << 29),
        ("memory", "1500m", 2),
        ("x/y", "2k", 2000),
    ],
)
def test_whole_units(resource: str, text: str | int, expected: int) -> None:
    assert whole_units(resource, parse_quantity(text)) == expected
