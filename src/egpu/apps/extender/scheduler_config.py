"""The KubeSchedulerConfiguration that makes kube-scheduler ask this extender."""

from typing import Any

from egpu.api import names

HTTP_TIMEOUT = "5s"
SERVER_NAME = "elastic-gpu-extender"


def scheduler_config(
    *,
    address: str = "127.0.0.1:3456",
    kubeconfig: str | None = None,
    scheduler_name: str = "default-scheduler",
    leader_elect: bool = False,
    pki: str = "/etc/kubernetes/elastic-gpu",
) -> dict[str, Any]:
    """Return the configuration as plain values, ready for YAML or JSON.

    The extender's timeout leaves room for one binding. `percentageOfNodesToScore` is 100, because otherwise an extender
    sees 42 / 10 / 5 % of the nodes at 1,000 / 5,000 / 15,000 nodes. The slot is not `ignoredByScheduler`, which would
    rule out preemption. `pki` is kube-scheduler's directory with ca.crt, client.crt and client.key, from the Secret
    that the controller writes. The certificate names the extender, whatever its address is."""
    extender: dict[str, Any] = {
        "urlPrefix": f"https://{address}",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": 10,
        "enableHTTPS": True,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": HTTP_TIMEOUT,
        "tlsConfig": {
            "serverName": SERVER_NAME,
            "caFile": f"{pki}/ca.crt",
            "certFile": f"{pki}/client.crt",
            "keyFile": f"{pki}/client.key",
        },
        "managedResources": [{"name": names.SLOT, "ignoredByScheduler": False}],
    }
    configuration: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": leader_elect},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": scheduler_name}],
        "extenders": [extender],
    }
    if kubeconfig is not None:
        configuration["clientConnection"] = {"kubeconfig": kubeconfig}
    return configuration
