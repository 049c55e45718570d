"""The webhook configurations as values, and the manifests beside them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from egpu.api import names
from egpu.api.foreign import FOREIGN
from egpu.api.vocabularies import POD_RESOURCES
from egpu.apps.agent import AgentConfig
from egpu.apps.controller import ControllerConfig, webhooks
from egpu.apps.extender import ExtenderConfig, scheduler_config
from egpu.apps.webhook import WebhookConfig
from egpu.errors import InvalidInput

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIGS = {"controller": ControllerConfig, "webhook": WebhookConfig, "extender": ExtenderConfig, "agent": AgentConfig}


def documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def test_every_vocabulary_reaches_the_webhook_and_system_namespaces_do_not():
    client = webhooks.client_config("/mutate", "Q0E=", url="https://127.0.0.1:1/", service=None, namespace="s")
    assert client.url == "https://127.0.0.1:1/mutate"
    (pods,) = webhooks.mutating(client, ["kube-system", "s"]).webhooks
    assert pods.failure_policy == "Fail"
    assert pods.namespace_selector is not None
    assert (pods.namespace_selector.match_expressions or [])[0].values == ["kube-system", "s"]
    (condition,) = pods.match_conditions or []
    for resource in (*POD_RESOURCES, names.SLOT, names.ALIYUN_GPU_COUNT):
        assert f'"{resource}"' in condition.expression
    for other in FOREIGN:
        named = f'startsWith("{other.name}")' if other.prefix else f'"{other.name}"'
        assert condition.expression.count(named) == 4, "limits and requests, of containers and init containers"
    for prefix in (names.GROUP + "/", *names.CLAIM_PREFIXES):
        assert f'startsWith("{prefix}")' in condition.expression
    assert condition.expression.count("(") == condition.expression.count(")")
    own = webhooks.validating(client, []).webhooks[1].rules[0]
    assert own.api_versions == list(names.SERVED_VERSIONS)


def test_the_certificate_names_what_the_api_server_calls():
    assert webhooks.hosts(url="https://127.0.0.1:9443", service=None, namespace="s") == ["127.0.0.1"]
    assert webhooks.hosts(url="https://[::1]:9443", service=None, namespace="s") == ["::1"]
    assert webhooks.hosts(url="https://host/path", service=None, namespace="s") == ["host"]
    assert webhooks.hosts(url=None, service="w:443", namespace="s")[0] == "w.s.svc"
    for bad in ({"url": "http://x", "service": None}, {"url": None, "service": None}, {"url": None, "service": "w:x"}):
        with pytest.raises(InvalidInput):
            webhooks.client_config("/", "", namespace="s", **bad)


@pytest.mark.parametrize("component", CONFIGS)
def test_the_manifests_give_only_flags_that_exist_and_a_role_to_each_account(component: str):
    workload = documents(DEPLOY / f"{component}.yaml")[0]
    spec = workload["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == f"elastic-gpu-{component}"
    command, *flags = spec["containers"][0]["args"]
    assert command == component
    known = {"--" + one.name.replace("_", "-") for one in fields(CONFIGS[component])}
    assert {flag.partition("=")[0] for flag in flags} <= known
    kinds = [one["kind"] for one in documents(DEPLOY / "rbac" / f"{component}.yaml")]
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= set(kinds)
    if component != "agent":
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_no_role_may_do_everything():
    for file in (DEPLOY / "rbac").glob("*.yaml"):
        for one in documents(file):
            for rule in one.get("rules", []):
                assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
                if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                    assert rule["resourceNames"] == ["elastic-gpu-webhook-tls"]


def test_everything_that_kustomize_names_is_there():
    for file in DEPLOY.rglob("kustomization.yaml"):
        for resource in yaml.safe_load(file.read_text())["resources"]:
            assert (file.parent / resource).exists(), resource


def test_the_scheduler_configuration_is_what_the_extender_writes():
    written = yaml.safe_load((DEPLOY / "scheduler" / "kube-scheduler-config.yaml").read_text())
    assert written == scheduler_config(kubeconfig="/etc/kubernetes/scheduler.conf", leader_elect=True)
