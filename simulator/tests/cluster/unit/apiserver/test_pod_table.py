"""The words of `kubectl get pods` for pods with sidecars: init containers that run as long as the pod."""

from typing import Any

import pytest

from egpu_sim.cluster.apiserver.reading.table import PODS

RUNNING = {"ready": True, "started": True, "state": {"running": {}}}
KILLED = {"ready": False, "started": False, "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
ENDED = {"ready": False, "started": False, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
WAITING = {"ready": False, "started": False, "state": {"waiting": {"reason": "PodInitializing"}}}
CRASHING = {"ready": False, "started": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}


def shown(side: dict[str, Any], app: dict[str, Any], *, phase: str, initialized: bool) -> tuple[str, str]:
    """Return Ready and Status of a pod with a sidecar, an init container that ended, and an app."""
    inits = [{"name": "side", "restartCount": 2, **side}, {"name": "once", "restartCount": 5, **ENDED}]
    pod = {
        "spec": {
            "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "once"}],
            "containers": [{"name": "app"}],
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": "Initialized", "status": str(initialized)}],
            "initContainerStatuses": inits,
            "containerStatuses": [{"name": "app", "restartCount": 0, **app}],
        },
    }
    cells = {column.name: str(column.cell(pod)) for column in PODS}
    assert cells["Restarts"] == ("2" if initialized else "7"), "an init container's restarts no longer count"
    return cells["Ready"], cells["Status"]


@pytest.mark.parametrize(
    ("side", "app", "phase", "initialized", "expected"),
    [
        (RUNNING, RUNNING, "Running", True, ("2/2", "Running")),
        (CRASHING, RUNNING, "Running", True, ("1/2", "Running")),
        (KILLED, ENDED, "Succeeded", True, ("0/2", "Completed")),
        (CRASHING, WAITING, "Pending", False, ("0/2", "Init:CrashLoopBackOff")),
        (WAITING, WAITING, "Pending", False, ("0/2", "Init:0/2")),
    ],
)
def test_a_pod_with_a_sidecar_shows_its_containers(
    side: dict[str, Any], app: dict[str, Any], phase: str, initialized: bool, expected: tuple[str, str]
) -> None:
    assert shown(side, app, phase=phase, initialized=initialized) == expected
