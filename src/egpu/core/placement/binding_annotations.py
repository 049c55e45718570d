"""The annotations of a Binding: our allocation, the card UUIDs for the containers' environment, and what tools of some
technologies read (which we never read back)."""

from egpu.api import names
from egpu.api.allocation import PodAllocation, encode
from egpu.core.provisioners import PROVISIONERS, provisioner


def binding_annotations(allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
    """Return the annotations for `POST pods/NAME/binding`. `assume_time_ns` is now, since the epoch."""
    written = {names.ALLOCATION: encode(allocation)}
    for name, container in allocation.containers.items():
        written[names.cards_annotation(name)] = provisioner(container.provisioner).visible_devices(container)
    for technology in PROVISIONERS.values():
        for key, said in technology.annotations(allocation, assume_time_ns=assume_time_ns).items():
            # Join the texts of several technologies in one pod.
            written[key] = f"{written[key]}; {said}" if key in written else said
    return written
