"""What the Binding carries into the pod: our allocation, the UUIDs that the container's environment is made from, and
for pods that speak gpushare's vocabulary the annotations that its own tools read (never read back as truth)."""

from egpu.api import names
from egpu.api.allocation import ContainerAllocation, PodAllocation, encode
from egpu.api.vocabularies import ALIYUN, GPUSHARE
from egpu.core.provisioners import provisioner

_SHARE_VOCABULARIES = (ALIYUN.name, GPUSHARE.name)


def binding_annotations(allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
    """Annotations for `POST pods/NAME/binding`. `assume_time_ns` is now, since the epoch.

    gpushare's annotations describe one container: the first one that speaks it. IDX and DEV: card index and card
    memory; POD: what the pod was given. Its tools count the unit of the vocabulary, GiB, rounded up.
    """
    written = {names.ALLOCATION: encode(allocation)}
    for name, container in allocation.containers.items():
        written[names.cards_annotation(name)] = visible_devices(container)
    sharing = [c for c in allocation.containers.values() if c.vocabulary in _SHARE_VOCABULARIES]
    if sharing:
        first = sharing[0].cards[0]
        total = sum(share.memory_mib for container in sharing for share in container.cards)
        written |= {
            names.ALIYUN_MEM_IDX: str(first.index),
            names.ALIYUN_MEM_DEV: str(_gib(first.card_memory_mib)),
            names.ALIYUN_MEM_POD: str(_gib(total)),
            names.ALIYUN_MEM_ASSIGNED: "false",
            names.ALIYUN_MEM_ASSUME_TIME: str(assume_time_ns),
        }
    return written


def visible_devices(container: ContainerAllocation) -> str:
    """What NVIDIA's container runtime is told: the cards, or to give neither devices nor driver ("void") to a container
    whose card an executor has."""
    if provisioner(container.provisioner).isolation == "executor":
        return names.NO_DEVICES
    return ",".join(share.uuid for share in container.cards)


def _gib(memory_mib: int) -> int:
    return -(-memory_mib // 1024)
