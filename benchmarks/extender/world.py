"""A made-up cluster, half full, and pods that come to it: objects as an API server writes them, request bodies as
kube-scheduler 1.36 sends them.

Everything is drawn with one seed, so that two runs see the same cluster and the same pods.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.api.objects import ElasticGPUClass, card_name
from egpu.core.dra.classes import device_class
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.shapes import WHOLE_CARD, Shape
from egpu_base.api.objects import ObjectMeta

CARDS_PER_NODE: Final = 8
CARD_MIB: Final = 46_068
MODEL: Final = "NVIDIA L40S"
CPU_MILLI: Final = 2000
RAM_MIB: Final = 8192
SEEN_OF_TEN: Final = 2000
PROVISIONER: Final = "elasticgpu.io/vcuda"
CLASS: Final = "slice"
CLAIMS: Final = "resourceclaims"
HELD: Final = "held"
"""Path of pods that watches are told of later, all at once: POST there, and then to RELEASE."""
RELEASE: Final = "/release"
ALLOCATED: Final = "/allocated"
"""GET: the time since RELEASE of each allocation of a claim, in the order in which they were written."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A pod's request on each of `cards` cards: percent and MiB, or all of it (`core` 100). `often` of ten pods."""

    cards: int
    core: int
    memory_mib: int
    often: int

    @property
    def whole(self) -> bool:
        return self.core == 100


KINDS: Final = (
    Kind(cards=1, core=25, memory_mib=10_240, often=3),
    Kind(cards=1, core=50, memory_mib=20_480, often=2),
    Kind(cards=1, core=10, memory_mib=4_096, often=2),
    Kind(cards=1, core=100, memory_mib=0, often=2),
    Kind(cards=4, core=100, memory_mib=0, often=1),
)
TOO_LARGE: Final = Kind(cards=CARDS_PER_NODE + 1, core=100, memory_mib=0, often=0)
"""A request that no node can serve."""


@dataclass
class World:
    """The objects of `count` nodes, with about half of their cards given to at most `running` pods, in the `namespaces`
    in turn."""

    count: int
    running: int | None = None
    namespaces: tuple[str, ...] = ("default",)
    allocator: str = ""
    """Who gives the cards to ResourceClaims."""
    nodes: list[Json] = field(default_factory=list[Json])
    cards: list[Json] = field(default_factory=list[Json])
    pods: list[Json] = field(default_factory=list[Json])

    def __post_init__(self) -> None:
        draw = random.Random(self.count)
        for number in range(self.count):
            name = node_name(number)
            self.nodes.append(_node(name, number))
            self._fill(name, draw)

    def _fill(self, node: str, draw: random.Random) -> None:
        """Add pods until half of the node's compute is given out, first card first; then the cards that show it."""
        left = [(100, CARD_MIB)] * CARDS_PER_NODE
        holders: list[list[str]] = [[] for _ in left]
        goal = 100 * CARDS_PER_NODE // 2
        while goal > 0 and len(self.pods) != self.running:
            kind = _drawn(draw)
            memory = CARD_MIB if kind.whole else kind.memory_mib
            fitting = [at for at, (core, mib) in enumerate(left) if core >= kind.core and mib >= memory]
            if len(fitting) < kind.cards:
                continue
            name = f"running-{len(self.pods)}"
            namespace = self.namespaces[len(self.pods) % len(self.namespaces)]
            for at in fitting[: kind.cards]:
                left[at] = (left[at][0] - kind.core, left[at][1] - memory)
                holders[at].append(f"pod {namespace}/{name}")
            self.pods.append(_running(name, namespace, node, kind, fitting[: kind.cards]))
            goal -= kind.core * kind.cards
        self.cards += [_card(node, at, left[at], sorted(held), self.allocator) for at, held in enumerate(holders)]


def arrivals(count: int, *, seed: int = 1, most_cards: int = CARDS_PER_NODE) -> Iterator[Json]:
    """Yield waiting pods, as the webhook left them, that request at most `most_cards`."""
    draw = random.Random(seed)
    for number in range(count):
        while (kind := _drawn(draw)).cards > most_cards:
            pass
        yield waiting(f"waiting-{number}", kind)


def waiting(name: str, kind: Kind, *, namespace: str = "default") -> Json:
    """Return a waiting pod, as the webhook left it."""
    demand = ContainerDemand(
        provisioner=PROVISIONER,
        cards=kind.cards,
        core=kind.core,
        memory_mib=kind.memory_mib,
        exclusive=kind.whole,
        vocabulary="elasticgpu",
    )
    text = msgspec.json.encode(PodDemand(containers={"app": demand})).decode()
    return _pod(name, kind, {names.DEMAND: text}, namespace)


def classes() -> dict[str, list[Json]]:
    """Return a class, and the DeviceClass that the controller makes of it, by plural."""
    klass = ElasticGPUClass(metadata=ObjectMeta(name=CLASS, uid="class"), provisioner=PROVISIONER)
    return {
        "elasticgpuclasses": [msgspec.to_builtins(klass)],
        "deviceclasses": [msgspec.to_builtins(device_class(klass))],
    }


def claim(name: str, kind: Kind) -> Json:
    """Return a ResourceClaim for a pod of this name that asks for the same."""
    amounts = {"cores": str(kind.core), "memory": f"{kind.memory_mib}Mi"}
    exactly = {"deviceClassName": CLASS, "count": kind.cards, "capacity": {"requests": amounts}}
    return {
        "kind": "ResourceClaim",
        "apiVersion": "resource.k8s.io/v1",
        "metadata": {"name": name, "namespace": "default", "uid": f"claim-{name}", "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def with_claim(pod: Json) -> Json:
    """Return a waiting pod that has the ResourceClaim of its name instead of other demands."""
    spec: Json = {**pod["spec"], "resourceClaims": [{"name": "gpu", "resourceClaimName": pod["metadata"]["name"]}]}
    (container,) = spec["containers"]
    cpu = {name: container["resources"]["limits"][name] for name in ("cpu", "memory")}
    spec["containers"] = [{**container, "resources": {"requests": cpu, "limits": cpu, "claims": [{"name": "gpu"}]}}]
    return {**pod, "metadata": {**pod["metadata"], "annotations": {}}, "spec": spec}


def allocation(node: str, kind: Kind, columns: list[int]) -> str:
    """Return the annotation of a pod that has these cards of the node, by their indexes."""
    shares = tuple(
        CardShare(
            uuid=card_uuid(node, at),
            index=at,
            minor=at,
            core=kind.core,
            memory_mib=CARD_MIB if kind.whole else kind.memory_mib,
            model=MODEL,
            card_memory_mib=CARD_MIB,
        )
        for at in columns
    )
    mode = "exclusive" if kind.whole else "shared"
    held = ContainerAllocation(provisioner=PROVISIONER, mode=mode, cards=shares, vocabulary="elasticgpu")
    return msgspec.json.encode(PodAllocation(node=node, containers={"app": held})).decode()


def kept_mix() -> str:
    """Return the job mix of an extender that has seen many such pods: it computes prices at its start, not later."""
    learned = LearnedMix()
    for kind in KINDS:
        amounts = (WHOLE_CARD, 0) if kind.whole else (kind.core * WHOLE_CARD // 100, kind.memory_mib)
        for _ in range(SEEN_OF_TEN * kind.often):
            learned.see(Shape(CPU_MILLI, RAM_MIB, kind.cards, *amounts))
    return learned.dump()


def node_name(number: int) -> str:
    return f"ip-10-{number // 65_536}-{number // 256 % 256}-{number % 256}.internal"


def card_uuid(node: str, index: int) -> str:
    return f"GPU-{random.Random(f'{node}/{index}').getrandbits(128):032x}"


def filter_body(pod: Json, nodes: list[str]) -> bytes:
    """Return the body of filter and prioritize: the whole pod, and the names of all nodes."""
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": nodes})


def bind_body(pod: Json, node: str) -> bytes:
    meta = pod["metadata"]
    body = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return msgspec.json.encode(body)


def review_body(made: Json, uid: str, *, resource: str = "pods") -> bytes:
    """Return an AdmissionReview of the creation of a pod, or of another `resource`."""
    group, _, version = made["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": made["kind"]}
    where = {"group": group, "version": version, "resource": resource}
    request = {
        "uid": uid,
        "kind": kind,
        "resource": where,
        "requestKind": kind,
        "requestResource": where,
        "name": made["metadata"]["name"],
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:job-controller",
            "groups": ["system:authenticated"],
        },
        "object": made,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return msgspec.json.encode({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})


def bare(pod: Json) -> Json:
    """Return the pod as a user sends it, before the webhook."""
    return {**pod, "metadata": {**pod["metadata"], "annotations": {}}}


def _drawn(draw: random.Random) -> Kind:
    return draw.choices(KINDS, weights=[kind.often for kind in KINDS])[0]


def _pod(name: str, kind: Kind, annotations: dict[str, str], namespace: str) -> Json:
    """Return a pod with the fields that API server and service account give every pod: most of its bytes."""
    resources = {names.GPU: str(kind.cards)} if kind.whole else {names.GPU_CORE: str(kind.core)}
    if kind.memory_mib:
        resources[names.GPU_MEMORY] = str(kind.memory_mib)
    limits = {"cpu": f"{CPU_MILLI}m", "memory": f"{RAM_MIB}Mi", **resources, names.SLOT: "1"}
    account = f"kube-api-access-{name}"
    uid = f"{random.Random(name).getrandbits(128):032x}"
    mount = {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": account, "readOnly": True}
    container = {
        "name": "app",
        "image": "registry.example.com/team/training:2026.11",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": _field("elasticgpu.io/cards-app")}}],
        "resources": {"limits": limits, "requests": limits},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "volumeMounts": [mount],
    }
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
    ]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "annotations": annotations,
            "creationTimestamp": "2026-11-22T11:02:03Z",
            "generation": 1,
            "labels": {"app": "training", "team": "vision"},
            "name": name,
            "namespace": namespace,
            "resourceVersion": "1",
            "uid": f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}",
        },
        "spec": {
            "containers": [container],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccount": "default",
            "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30,
            "tolerations": [_toleration("not-ready"), _toleration("unreachable")],
            "volumes": [{"name": account, "projected": {"defaultMode": 420, "sources": sources}}],
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def _field(annotation: str) -> Json:
    return {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}


def _toleration(what: str) -> Json:
    key = f"node.kubernetes.io/{what}"
    return {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}


def _running(name: str, namespace: str, node: str, kind: Kind, columns: list[int]) -> Json:
    pod = _pod(name, kind, {names.ALLOCATION: allocation(node, kind, columns)}, namespace)
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "qosClass": "Guaranteed"}
    return pod


def _node(name: str, number: int) -> Json:
    room = {"cpu": "128", "memory": "1056Gi", "pods": "110", "ephemeral-storage": "1900Gi"}
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        "elasticgpu.io/gpu-product": MODEL.replace(" ", "-"),
    }
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = [
        {"type": kind, "status": str(kind == "Ready"), "lastHeartbeatTime": "2026-11-22T11:02:03Z", "reason": "Kubelet"}
        for kind in kinds
    ]
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"node-{number}", "resourceVersion": "1", "labels": labels},
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "nodeInfo": {"kubeletVersion": "v1.36.1", "containerRuntimeVersion": "containerd://2.1.4"},
        },
    }


def _card(node: str, index: int, left: tuple[int, int], holders: list[str], allocator: str) -> Json:
    uuid = card_uuid(node, index)
    listed = holders if len(holders) <= 3 else [*holders[:3], f"{len(holders) - 3} more"]
    physical = {
        "uuid": uuid,
        "index": index,
        "minor": index,
        "model": MODEL,
        "memoryMiB": CARD_MIB,
        "computeCapability": "8.9",
        "tflops": {"fp32": 91.6, "fp16": 362.0},
        "numa": index // 4,
    }
    physical |= {"allocator": allocator} if allocator else {}
    given = {names.GPU_CORE: str(100 - left[0]), names.GPU_MEMORY: str(CARD_MIB - left[1])}
    phase = "Bound" if holders else "Available"
    return {
        "kind": "ElasticGPU",
        "apiVersion": names.API_VERSION,
        "metadata": {"name": card_name(node, uuid), "uid": f"card-{uuid}", "resourceVersion": "1"},
        "spec": {"nodeName": node, "physicalGPU": physical},
        "status": {"healthy": True, "phase": phase, "given": given, "heldBy": ", ".join(listed)},
    }
