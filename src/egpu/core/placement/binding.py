"""What the Binding carries into the pod: our allocation, the UUIDs that the container's environment is made from, and
what the tools of some technology read (never read back as truth)."""

from egpu.api import names
from egpu.api.allocation import PodAllocation, encode
from egpu.core.provisioners import PROVISIONERS, provisioner


def binding_annotations(allocation: PodAllocation, *, assume_time_ns: int) -> dict[str, str]:
    """Annotations for `POST pods/NAME/binding`. `assume_time_ns` is now, since the epoch."""
    written = {names.ALLOCATION: encode(allocation)}
    for name, container in allocation.containers.items():
        written[names.cards_annotation(name)] = provisioner(container.provisioner).visible_devices(container)
    for technology in PROVISIONERS.values():
        for key, said in technology.annotations(allocation, assume_time_ns=assume_time_ns).items():
            # What two technologies of one pod say of themselves is said of both.
            written[key] = f"{written[key]}; {said}" if key in written else said
    return written
