"""Hides the node's cards from containers that ask for none, where NVIDIA's container runtime would show them."""

from collections.abc import Collection

from egpu.api import names
from egpu.api.admission import JSONPatch
from egpu.core.demand.amounts import gpu_names
from egpu.core.json_patch import add
from egpu_base.api.kubernetes import Container, Pod


def may_show_cards(container: Container) -> bool:
    """Return whether NVIDIA's runtime might show all cards to a container that asks for none: by a variable from
    elsewhere or of the image, or because a variable makes it look like an image of early CUDA."""
    said = [variable.name for variable in container.env or ()]
    named = any(name == names.CUDA_VERSION or name.startswith(names.NVIDIA_PREFIX) for name in said)
    return bool(named or container.env_from or gpu_names(container))


def hide_cards(pod: Pod, covered: Collection[str]) -> JSONPatch:
    """Hide the node's cards from these containers, unless they set the variable themselves: a container's own variable
    overrides one of its image or from elsewhere."""
    patch: JSONPatch = []
    for kind, containers in (("initContainers", pod.init_containers), ("containers", pod.containers)):
        for position, container in enumerate(containers):
            said = {variable.name for variable in container.env or []}
            if container.name in covered and names.NVIDIA_VISIBLE_DEVICES not in said:
                path = ("spec", kind, str(position), "env")
                nothing = {"name": names.NVIDIA_VISIBLE_DEVICES, "value": names.NO_DEVICES}
                patch += [] if container.env is not None else [add([], *path)]
                patch.append(add(nothing, *path, "-"))
    return patch
