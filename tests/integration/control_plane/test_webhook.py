"""Admission over real TLS, from the simulated API server: what is changed, what is refused, and with which words."""

import base64
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from egpu.api import names
from egpu.api.admission import AdmissionRequest, GroupVersionResource
from egpu.api.allocation import PodDemand
from egpu.api.webhooks import MutatingWebhookConfiguration
from egpu.apps.webhook import Webhook, WebhookConfig
from egpu_base.api.kubernetes import Pod, Secret
from egpu_base.errors import Refused
from egpu_base.kubernetes import Client
from egpu_base.tls.certificates import issue
from support.control_plane import admission, control_plane, running
from support.ports import free_port
from support.waiting import until

EXAMPLES = Path(__file__).parents[3] / "examples"


def pod_with(
    limits: dict[str, str] | None = None, *, name: str = "p", annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": [{"name": "app", "image": "x", "resources": {"limits": limits or {}}}]},
    }


def demand_of(pod: Pod) -> PodDemand:
    return msgspec.json.decode(pod.annotations[names.DEMAND], type=PodDemand)


async def test_the_design_articles_manifests_apply_in_one_go_and_are_normalised(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one):
        for file in sorted(EXAMPLES.glob("seed-*.yaml")):
            await one.apply(file.read_text())
        pods = {pod.name: pod for pod in await one.client.list(Pod, namespace="default")}
        assert len(pods) == 4
        for pod in pods.values():
            (container,) = pod.containers
            assert container.resources is not None
            assert (container.resources.limits or {})[names.SLOT] in (1, "1")
            assert (container.resources.requests or {}).items() <= (container.resources.limits or {}).items()
            assert names.NVIDIA_VISIBLE_DEVICES in {variable.name for variable in container.env or []}
        demand = demand_of(pods["vcuda-pod"]).containers["app"]
        assert (demand.core, demand.memory_mib) == (20, 2560)
        assert demand_of(pods["qgpu-pod"]).containers["test"].claim == "qgpu-egpuc"


def gang_member(name: str, size: str = "2", limits: dict[str, str] | None = None) -> dict[str, Any]:
    annotations = {names.GANG: "train", names.GANG_SIZE: size}
    return pod_with(limits or {names.GPU_CORE: "50"}, name=name, annotations=annotations)


async def test_members_of_a_gang_must_agree_with_those_that_are_there(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one):
        await one.create(gang_member("a"))
        with pytest.raises(Refused, match=r"elasticgpu.io/gang-size\]: is 3, and 2 in pod a of the gang train"):
            await one.create(gang_member("b", "3"))
        await one.create(gang_member("b"))
        with pytest.raises(Refused, match=r"the gang train already has 2 members \(a, b\)"):
            await one.create(gang_member("c"))
        made = await one.client.get(Pod, "a", namespace="default")
        assert (made.metadata.labels or {})[names.GANG] == "train"
        with pytest.raises(Refused, match="cannot change after the pod is created"):
            await one.client.patch(Pod, "a", {"metadata": {"annotations": {names.GANG_SIZE: "3"}}}, namespace="default")
        await one.client.delete(Pod, "b", namespace="default", grace_period_seconds=0)
        await one.create(gang_member("c"))


def mounting(path: str) -> dict[str, Any]:
    pod = pod_with({names.GPU_CORE: "10"})
    pod["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]
    return pod


BAD_PODS = [
    (mounting("/opt/egpu"), r"volumeMounts\[/opt/egpu\]: would cover /opt/egpu"),
    (pod_with({names.DOCKER_VCUDA_CORE: "150"}), "vcuda-core"),
    (pod_with({names.DOCKER_VCUDA_CORE: "20", names.DOCKER_VCUDA_MEMORY: "100000"}), "vcuda-memory"),
    (pod_with({names.NVIDIA_GPU: "1", names.ALIYUN_GPU_MEM: "2"}), "app"),
    (pod_with(annotations={names.CLAIM_PREFIXES[0] + "app": "nowhere"}), "nowhere"),
    (pod_with(annotations={names.CLAIM_PREFIXES[0] + "none": "c"}), "none"),
    (pod_with(annotations={names.CLAIM_PREFIXES[0] + "app": "other/c"}), "namespace"),
    (pod_with({"nvidia.com/mig-9g.5gb": "1"}), "an unknown MIG profile"),
    (pod_with({"elasticgpu.io/gpu-cores": "10"}), "is an unknown name"),
    (pod_with({names.QGPU_MEMORY: "5", "tke.cloud.tencent.com/qgpu-core-greedy": "10"}), "low priority"),
    (pod_with({names.NVIDIA_GPU: "1", names.HAMI_MEMORY: "3000"}), "not turned on"),
    (pod_with({names.GPU_CORE: "10"}, annotations={names.CARD_SELECTOR: "colour = red"}), "no attribute 'colour'"),
    (pod_with(annotations={"gpu-fraction": "0.5"}), "KAI and Run:ai"),
    (pod_with({names.NVIDIA_GPU: "1"}, annotations={"nvidia.com/use-gpuuuid": "GPU-1"}), "is of HAMi"),
    (pod_with({names.NVIDIA_GPU: "1"}, annotations={names.HAMI_MEMORY: "3000"}), "under resources.limits"),
    (gang_member("p", "two"), "gang-size"),
    (gang_member("p", limits={"cpu": "1"}), "asks for no GPU"),
    (pod_with({names.NVIDIA_GPU: "1"}, annotations={names.ALLOCATION: "{}"}), names.ALLOCATION),
]


async def test_bad_pods_are_refused_naming_the_field(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one) as (_, webhook):
        await one.node("n0")
        await until(lambda: webhook.admission.cards.largest_mib is not None)
        for pod, words in BAD_PODS:
            with pytest.raises(Refused, match=words):
                await one.create(pod)
        assert await one.client.list(Pod, namespace="default") == []


async def test_zeros_and_units_reach_the_cluster_as_nodes_count_them(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one):
        await one.create(pod_with({names.NVIDIA_GPU: "0"}))
        made = await one.client.get(Pod, "p", namespace="default")
        assert names.DEMAND not in made.annotations
        await one.create(pod_with({names.GPU_CORE: "0", names.GPU_MEMORY: "4Gi"}, name="q"))
        made = await one.client.get(Pod, "q", namespace="default")
        assert demand_of(made).containers["app"].memory_mib == 4096
        resources = made.containers[0].resources
        assert resources is not None
        assert (resources.requests or {})[names.GPU_MEMORY] == (resources.limits or {})[names.GPU_MEMORY] == "4096"


async def test_amounts_without_room_for_a_context_get_a_warning(tmp_path: Path):
    def asked(resource: str, document: dict[str, Any]) -> AdmissionRequest:
        of = GroupVersionResource(group="", version="v1", resource=resource)
        raw = msgspec.Raw(msgspec.json.encode(document))
        return AdmissionRequest(uid="1", resource=of, namespace="default", operation="CREATE", object=raw)

    async with control_plane(tmp_path) as one, admission(one) as (_, webhook):
        await one.node("n0")
        await until(lambda: webhook.admission.cards.largest_mib is not None)
        kind = {"apiVersion": "elasticgpu.io/v1alpha1", "kind": "ElasticGPUClass", "metadata": {"name": "shared"}}
        await one.create({**kind, "provisioner": names.VCUDA})
        for memory, warns in (("10", True), ("2000", False)):
            amounts = {names.GPU_CORE: "10", names.GPU_MEMORY: memory}
            spec = {"elasticGPUClassName": "shared", "resources": {"requests": amounts}}
            claim = {**kind, "kind": "ElasticGPUClaim", "metadata": {"name": "c"}, "spec": spec}
            for resource, document in (("pods", pod_with(amounts)), ("elasticgpuclaims", claim)):
                answer = await webhook.admission.validate(asked(resource, document))
                assert answer.allowed, answer
                told = answer.warnings or []
                assert [f"{memory} MiB has no room for a CUDA context" in one for one in told] == [True] * warns


async def test_our_own_objects_are_checked_too(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one):
        bad_class = {
            "apiVersion": "elasticgpu.io/v1alpha1",
            "kind": "ElasticGPUClass",
            "metadata": {"name": "c"},
            "provisioner": "example.com/other",
        }
        with pytest.raises(Refused, match=r"example\.com/other"):
            await one.create(bad_class)
        claim = {
            "apiVersion": "elasticgpu.io/v1alpha1",
            "kind": "ElasticGPUClaim",
            "metadata": {"name": "c"},
            "spec": {"elasticGPUClassName": "missing", "resources": {"requests": {names.GPU_CORE: 10}}},
        }
        with pytest.raises(Refused, match="'missing' does not exist; existing classes: none"):
            await one.create(claim)
        for name in ("shared", "other"):
            await one.create({**bad_class, "metadata": {"name": name}, "provisioner": names.VCUDA})
        with pytest.raises(Refused, match="'missing' does not exist; existing classes: other, shared"):
            await one.create(claim)


async def test_the_author_of_a_class_is_warned_of_what_its_programs_share(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one) as (_, webhook):
        for technology, warned in ((names.MPS, True), (names.VCUDA, False)):
            made = {"metadata": {"name": "c"}, "provisioner": technology}
            asked = AdmissionRequest(
                uid="u",
                operation="CREATE",
                resource=GroupVersionResource(resource="elasticgpuclasses"),
                object=msgspec.Raw(msgspec.json.encode(made)),
            )
            answer = await webhook.admission.validate(asked)
            assert answer.allowed
            assert ("programs that trust each other" in str(answer.warnings)) == warned


async def test_nobody_changes_the_demand_of_a_pod_afterwards(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one):
        await one.create(pod_with({names.NVIDIA_GPU: "1"}))
        patch = {"metadata": {"annotations": {names.DEMAND: "{}"}}}
        with pytest.raises(Refused, match="cannot change"):
            await one.client.patch(Pod, "p", patch, namespace="default")
        await one.client.patch(Pod, "p", {"metadata": {"annotations": {"note": "fine"}}}, namespace="default")


async def test_malformed_reviews_get_a_400_with_the_reason(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one) as (_, webhook):
        secret = await one.client.get(Secret, "elastic-gpu-webhook-tls", namespace="elastic-gpu-system")
        assert set(secret.data or {}) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
        async with httpx2.AsyncClient(verify=False, trust_env=False) as http:
            url = f"https://{webhook.config.webhook_listen}"
            for body, words in (
                (b"{", "AdmissionReview"),
                (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "request.uid"),
                (b'{"kind":"Pod","apiVersion":"v1","request":{"uid":"u"}}', "admission.k8s.io"),
            ):
                answer = await http.post(f"{url}/mutate", content=body)
                assert (answer.status_code, words in answer.text) == (400, True)
            garbage = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u",'
            garbage += b'"operation":"CREATE","resource":{"version":"v1","resource":"pods"},"object":{"metadata":7}}}'
            answer = (await http.post(f"{url}/mutate", content=garbage)).json()
            assert answer["response"]["allowed"] is False
            assert "not a valid Pod" in answer["response"]["status"]["message"]
            assert (await http.get(f"{url}/readyz")).status_code == 200
            assert (await http.get(f"{url}/metrics")).status_code == 404, "they are elsewhere, for those who may"


async def test_the_controller_repairs_what_somebody_broke_and_renews_the_certificate(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one) as (controller, webhook):
        remove = {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}
        await one.client.patch_json(MutatingWebhookConfiguration, "elastic-gpu", [remove])
        await controller.certificates.reconcile()
        found = await one.client.get(MutatingWebhookConfiguration, "elastic-gpu")
        assert all(hook.client_config.ca_bundle for hook in found.webhooks)
        broken = {"data": {"tls.crt": "bm90IGEgY2VydGlmaWNhdGU="}}
        await one.client.patch(Secret, "elastic-gpu-webhook-tls", broken, namespace="elastic-gpu-system")
        await controller.certificates.reconcile()
        await until(lambda: _admits(one.client, webhook))


NAMED = {"sni_hostname": "elastic-gpu-webhook.elastic-gpu-system.svc"}
"""The API server asks for the webhook by its Service's name, whatever the address."""


async def _admits(client: Client, webhook: Webhook) -> bool:
    """Whether a TLS client that trusts what the configuration says reaches the webhook."""
    found = await client.get(MutatingWebhookConfiguration, "elastic-gpu")
    bundle = ssl.create_default_context()
    bundle.load_verify_locations(cadata=base64.b64decode(found.webhooks[0].client_config.ca_bundle or "").decode())
    async with httpx2.AsyncClient(verify=bundle, trust_env=False) as http:
        try:
            return (
                await http.get(f"https://{webhook.config.webhook_listen}/healthz", extensions=NAMED)
            ).status_code == 200
        except httpx2.HTTPError:
            return False


async def test_certificate_files_are_loaded_again_when_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("egpu_base.tls.followed.POLL_SECONDS", 0.05)
    first, second = (issue(["127.0.0.1"], now=datetime.now(UTC)) for _ in range(2))
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"
    for path, content in zip(paths, (first.certificate, first.key), strict=True):
        path.write_bytes(content)
    async with control_plane(tmp_path) as one:
        listen = f"127.0.0.1:{free_port()}"
        config = WebhookConfig(listen="127.0.0.1:0", webhook_listen=listen, tls_cert=paths[0], tls_key=paths[1])
        async with running(Webhook(config, one.client)):

            async def trusted(ca: bytes) -> bool:
                context = ssl.create_default_context(cadata=ca.decode())
                async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
                    try:
                        return (await http.get(f"https://{listen}/healthz")).status_code == 200
                    except httpx2.HTTPError:
                        return False

            await until(lambda: trusted(first.ca_bundle))
            for path, content in zip(paths, (second.certificate, second.key), strict=True):
                path.write_bytes(content)
            await until(lambda: trusted(second.ca_bundle))
