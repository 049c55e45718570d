"""The webhook configurations as values, and the manifests beside them."""

from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer.main
import yaml

from egpu.api import names
from egpu.api.foreign import FOREIGN
from egpu.api.vocabularies import POD_RESOURCES
from egpu.apps.controller import webhooks
from egpu.apps.extender import scheduler_config
from egpu.cli.app import app
from egpu_base.cel.grammar import Question, compiled
from egpu_base.errors import InvalidInput

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMANDS: Any = typer.main.get_command(app)
FILES = {"controller": "controller", "webhook": "webhook", "extender": "existing/extender", "agent": "agent"}


def documents(file: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def test_every_vocabulary_reaches_the_webhook_and_system_namespaces_do_not():
    pods, plain, _ = webhooks.mutating().webhooks
    assert (pods.failure_policy, plain.failure_policy) == ("Fail", "Ignore")
    assert pods.namespace_selector is not None
    assert "kube-system" in ((pods.namespace_selector.match_expressions or [])[0].values or [])
    (condition,) = pods.match_conditions or []
    sees = compiled(condition.expression)
    longer = [f"{other.name}x" for other in FOREIGN if other.prefix]
    for resource in (*POD_RESOURCES, names.SLOT, names.ALIYUN_GPU_COUNT, *(other.name for other in FOREIGN), *longer):
        for kind in ("limits", "requests"):
            one = {"name": "c", "resources": {kind: {"cpu": "1", resource: "1"}}}
            for of in ("containers", "initContainers"):
                assert sees({"object": {"metadata": {}, "spec": {of: [one]}}}), (resource, kind, of)
    for resource in ("cpu", "amd.com/gpu", "nvidia.com/hostdev", "volcano.sh/other"):
        one = {"name": "c", "resources": {"limits": {resource: "1"}}}
        assert not sees({"object": {"metadata": {}, "spec": {"containers": [one]}}}), resource
    for prefix in (names.GROUP + "/", *names.CLAIM_PREFIXES, *names.RESIZE_PREFIXES):
        assert f'startsWith("{prefix}")' in condition.expression
    assert condition.expression.count("(") == condition.expression.count(")")
    own = webhooks.validating().webhooks[1].rules[0]
    assert own.api_versions == list(names.SERVED_VERSIONS)


def test_what_is_installed_is_what_the_functions_say():
    written = documents(DEPLOY / "admission" / "webhooks.yaml")
    assert written == [msgspec.to_builtins(one) for one in (webhooks.mutating(), webhooks.validating())]


def test_the_certificate_names_what_the_api_server_calls():
    assert webhooks.hosts("w:443", "s")[0] == "w.s.svc"
    assert webhooks.hosts("w", "s")[0] == "w.s.svc"
    for bad in ("", "w:x", ":443"):
        with pytest.raises(InvalidInput):
            webhooks.hosts(bad, "s")


@pytest.mark.parametrize("component", FILES)
def test_the_manifests_give_only_flags_that_exist_and_a_role_to_each_account(component: str):
    workload = documents(DEPLOY / f"{FILES[component]}.yaml")[0]
    spec = workload["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == f"elastic-gpu-{component}"
    command, *flags = spec["containers"][0]["args"]
    assert command == component
    known = {option for one in COMMANDS.commands[component].params for option in one.opts}
    assert {flag.partition("=")[0] for flag in flags} <= known
    kinds = [one["kind"] for one in documents(DEPLOY / "rbac" / f"{component}.yaml")]
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= set(kinds)
    if component != "agent":
        assert spec["securityContext"]["runAsNonRoot"] is True


def test_no_role_may_do_everything():
    for file in (DEPLOY / "rbac").glob("*.yaml"):
        for one in documents(file):
            for rule in one.get("rules", []):
                named = (rule.get(key, []) for key in ("resources", "apiGroups", "nonResourceURLs"))
                assert not any("*" in text for text in chain(rule["verbs"], *named))
                if "secrets" in rule.get("resources", []) and rule["verbs"] != ["create"]:
                    assert set(rule["resourceNames"]) <= {
                        "elastic-gpu-webhook-tls",
                        "elastic-gpu-extender-tls",
                        "elastic-gpu-remade-pods",
                    }
                if "admissionregistration.k8s.io" in rule.get("apiGroups", []):
                    assert (rule["verbs"], rule["resourceNames"]) == (["get", "patch"], ["elastic-gpu"])


def test_everything_that_kustomize_names_is_there():
    for file in DEPLOY.rglob("kustomization.yaml"):
        for resource in yaml.safe_load(file.read_text())["resources"]:
            assert (file.parent / resource).exists(), resource


def test_the_scheduler_configuration_is_what_the_extender_writes():
    written = yaml.safe_load((DEPLOY / "scheduler" / "kube-scheduler-config.yaml").read_text())
    assert written == scheduler_config(kubeconfig="/etc/kubernetes/scheduler.conf", leader_elect=True)


@pytest.mark.parametrize("may", [True, False])
def test_the_webhook_is_asked_about_cards_of_a_binding_unless_the_policy_lets_its_writer_give_them_out(may: bool):
    (bindings,) = (one for one in webhooks.validating().webhooks if "pods/binding" in one.rules[0].resources)
    right = {"group": names.GROUP, "resource": "allocations", "check": "write"}
    scope = {
        "object": {"metadata": {"annotations": {names.ALLOCATION: "{}"}}},
        "authorizer": Question(lambda asked: may and asked == right),
    }
    asked = [compiled(one.expression)(scope) for one in bindings.match_conditions or []]
    assert all(asked) is not may
    policy, _ = documents(DEPLOY / "admission" / "allocations.yaml")
    assert webhooks.MAY_GIVE_OUT in [one["expression"] for one in policy["spec"]["variables"]]


def test_the_webhook_is_asked_about_configuration_of_our_driver_alone():
    (hook,) = (one for one in webhooks.validating().webhooks if "device-configuration" in one.name)
    assert hook.failure_policy == "Ignore"
    assert [(one.operations, one.resources) for one in hook.rules] == [
        (["CREATE"], ["resourceclaims", "resourceclaimtemplates"]),
        (["CREATE", "UPDATE"], ["deviceclasses"]),
    ]
    (condition,) = hook.match_conditions or []
    asked = compiled(condition.expression)
    for driver, expected in ((names.DRIVER, True), ("gpu.nvidia.com", False)):
        config = [{"opaque": {"driver": driver, "parameters": {}}}]
        for spec in ({"config": config}, {"devices": {"config": config}}, {"spec": {"devices": {"config": config}}}):
            assert asked({"object": {"spec": spec}}) is expected
    assert not asked({"object": {"spec": {"devices": {"requests": []}}}})
    assert not asked({"object": {"spec": {"spec": {}}}})
