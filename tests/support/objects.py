"""Objects as the API server holds them (cards, pods, claims, classes), and the scheduler's cache filled with them."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from egpu.api import names
from egpu.api.allocation import PodAllocation, encode
from egpu.api.objects import (
    ClaimResources,
    ElasticGPU,
    ElasticGPUClaim,
    ElasticGPUClaimSpec,
    ElasticGPUClass,
    ElasticGPUSpec,
    ElasticGPUStatus,
    PhysicalGPU,
)
from egpu.core.placement.cache import SchedulerCache, rebuild
from egpu.core.policies.registry import Policies
from egpu_base.api.kubernetes import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    ResourceRequirements,
)
from egpu_base.api.objects import ObjectMeta
from egpu_base.api.quantities import Quantity

BINPACK = Policies.named()
SPREAD = Policies.named("spread", "spread")
CORE, MEMORY = names.DOCKER_VCUDA_CORE, names.DOCKER_VCUDA_MEMORY


def card(
    node: str,
    index: int,
    *,
    memory_mib: int = 16384,
    healthy: bool = True,
    tflops: float = 8.0,
    model: str = "T4",
    memory_isolation: str = "",
    mps: str = "",
) -> ElasticGPU:
    return ElasticGPU(
        metadata=ObjectMeta(name=f"{node}-card{index}"),
        spec=ElasticGPUSpec(
            node_name=node,
            physical_gpu=PhysicalGPU(
                uuid=f"GPU-{node}-{index}",
                index=index,
                minor=index,
                model=model,
                memory_mib=memory_mib,
                tflops={"fp32": tflops},
                memory_isolation=memory_isolation,
                mps=mps,
            ),
        ),
        status=ElasticGPUStatus(phase="Available", healthy=healthy),
    )


def container(name: str, asks: Mapping[str, int | str] | None = None, *, sidecar: bool = False) -> Container:
    resources = ResourceRequirements(limits=dict(asks)) if asks else None
    return Container(name=name, image="x", resources=resources, restart_policy="Always" if sidecar else None)


def pod(
    name: str,
    *containers: Container,
    init: Sequence[Container] = (),
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
) -> Pod:
    return Pod(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", annotations=dict(annotations or {})),
        spec=PodSpec(containers=list(containers), init_containers=list(init)),
        status=PodStatus(phase="Pending"),
    )


def slice_pod(name: str, core: int = 20, blocks: int = 10) -> Pod:
    """One container that asks for `core` percent and `blocks` times 256 MiB."""
    return pod(name, container("app", {CORE: core, MEMORY: blocks}))


def claim_pod(name: str, claim: str) -> Pod:
    return pod(name, container("app"), annotations={names.CLAIM_PREFIXES[0] + "app": claim})


def placed(what: Pod, allocation: PodAllocation) -> Pod:
    """The pod as the watch shows it after its binding."""
    annotations = what.annotations | {names.ALLOCATION: encode(allocation)}
    return replace(
        what,
        metadata=replace(what.metadata, annotations=annotations),
        spec=replace(what.spec, node_name=allocation.node),
        status=PodStatus(phase="Running"),
    )


def ended(what: Pod, *, still_running: bool = False) -> Pod:
    """The pod in a terminal phase; `still_running`: one of its containers has not ended yet."""
    state = ContainerState(running=ContainerStateRunning()) if still_running else None
    return replace(
        what, status=PodStatus(phase="Failed", container_statuses=[ContainerStatus(name="app", state=state)])
    )


def gpu_class(
    name: str = "shared",
    provisioner: str = names.VCUDA,
    *,
    wait: bool = False,
    retain: bool = False,
    parameters: Mapping[str, str] | None = None,
) -> ElasticGPUClass:
    return ElasticGPUClass(
        metadata=ObjectMeta(name=name),
        provisioner=provisioner,
        parameters=dict(parameters) if parameters else None,
        reclaim_policy="Retain" if retain else "Delete",
        e_gpu_binding_mode="WaitForFirstConsumer" if wait else "Immediate",
    )


def claim(
    name: str,
    asks: Mapping[str, int | float | str] | None = None,
    class_name: str = "shared",
    namespace: str = "default",
) -> ElasticGPUClaim:
    wanted: dict[str, Quantity] = dict(asks) if asks is not None else {names.GPU_CORE: 30, names.GPU_MEMORY: 4096}
    return ElasticGPUClaim(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=f"uid-claim-{name}", finalizers=[names.CLAIM_FINALIZER]
        ),
        spec=ElasticGPUClaimSpec(resources=ClaimResources(requests=wanted), egpu_class_name=class_name),
    )


def cluster(nodes: int = 1, cards: int = 1, *, memory_mib: int = 16384) -> SchedulerCache:
    """A cache of equal nodes n0, n1, … with equal cards."""
    return rebuild([card(f"n{n}", c, memory_mib=memory_mib) for n in range(nodes) for c in range(cards)], [], [])


def place(cache: SchedulerCache, what: Pod, node: str = "n0", policies: Policies = BINPACK) -> PodAllocation:
    """Choose and show the bound pod to the cache."""
    allocation = cache.ranking.choose(cache.request(what), node, policies)
    cache.pod_changed(placed(what, allocation))
    return allocation


def fits(cache: SchedulerCache, what: Pod, *nodes: str) -> tuple[str, ...]:
    return cache.filter(cache.request(what), nodes or ("n0",)).fits


def why_not(cache: SchedulerCache, what: Pod, node: str = "n0") -> str:
    return cache.filter(cache.request(what), [node]).refusals()[node].text()


def gang_pod(name: str, gang: str = "g", size: int = 2, core: int = 100, timeout: str = "") -> Pod:
    """A member of a gang: one container that asks for `core` percent."""
    annotations = {names.GANG: gang, names.GANG_SIZE: str(size)}
    if timeout:
        annotations[names.GANG_TIMEOUT] = timeout
    return pod(name, container("app", {names.GPU_CORE: core}), annotations=annotations)
