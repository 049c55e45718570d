"""Admission over real TLS, from the embedded API server: what is changed, what is refused, and with which words."""

import base64
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from egpu.adapters.certificates import issue
from egpu.adapters.kubernetes import Client
from egpu.api import names
from egpu.api.allocation import PodDemand
from egpu.api.kubernetes import Pod, Secret
from egpu.api.webhooks import MutatingWebhookConfiguration
from egpu.apps.webhook import Webhook, WebhookConfig
from egpu.errors import Refused
from support.control_plane import admission, control_plane, running
from support.ports import free_port
from support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"


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
        with pytest.raises(Refused, match=r"elasticgpu.io/gang-size\]: says 3, and pod a of the gang train says 2"):
            await one.create(gang_member("b", "3"))
        await one.create(gang_member("b"))
        with pytest.raises(Refused, match=r"the gang train has its 2 members \(a, b\)"):
            await one.create(gang_member("c"))
        made = await one.client.get(Pod, "a", namespace="default")
        assert (made.metadata.labels or {})[names.GANG] == "train"
        with pytest.raises(Refused, match="cannot be changed once the pod is made"):
            await one.client.patch(Pod, "a", {"metadata": {"annotations": {names.GANG_SIZE: "3"}}}, namespace="default")
        await one.client.delete(Pod, "b", namespace="default", grace_period_seconds=0)
        await one.create(gang_member("c"))


BAD_PODS = [
    (pod_with({names.DOCKER_VCUDA_CORE: "150"}), "vcuda-core"),
    (pod_with({names.DOCKER_VCUDA_CORE: "20", names.DOCKER_VCUDA_MEMORY: "100000"}), "vcuda-memory"),
    (pod_with({names.NVIDIA_GPU: "1", names.ALIYUN_GPU_MEM: "2"}), "app"),
    (pod_with(annotations={names.CLAIM_PREFIXES[0] + "app": "nowhere"}), "nowhere"),
    (pod_with(annotations={names.CLAIM_PREFIXES[0] + "none": "c"}), "none"),
    (pod_with(annotations={names.CLAIM_PREFIXES[0] + "app": "other/c"}), "namespace"),
    (pod_with({"nvidia.com/mig-9g.5gb": "1"}), "no profile of MIG"),
    (pod_with({"elasticgpu.io/gpu-cores": "10"}), "does not have"),
    (pod_with({names.QGPU_MEMORY: "5", "tke.cloud.tencent.com/qgpu-core-greedy": "10"}), "low priority"),
    (pod_with({names.NVIDIA_GPU: "1", names.HAMI_MEMORY: "3000"}), "not turned on"),
    (pod_with({names.GPU_CORE: "10"}, annotations={names.CARD_SELECTOR: "colour = red"}), "no attribute 'colour'"),
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
        with pytest.raises(Refused, match="missing"):
            await one.create(claim)


async def test_nobody_changes_the_demand_of_a_pod_afterwards(tmp_path: Path):
    async with control_plane(tmp_path) as one, admission(one):
        await one.create(pod_with({names.NVIDIA_GPU: "1"}))
        patch = {"metadata": {"annotations": {names.DEMAND: "{}"}}}
        with pytest.raises(Refused, match="cannot be changed"):
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
            assert "not a readable Pod" in answer["response"]["status"]["message"]
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
    monkeypatch.setattr("egpu.adapters.certificate_files.POLL_SECONDS", 0.05)
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
