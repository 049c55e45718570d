"""`parameters: {shareable: "true"}` of a class: several pods may use one claim of it at the same time.

They have one slice together: what they hold is added up, and is never more than the claim has. The word is the one of
Kubernetes' dynamic resource allocation for what has more than one consumer at a time. Access modes, as volumes have,
would say nothing of a GPU: which nodes reach it the technology decides, and nothing is only read.
"""

from typing import Final

from egpu.api.objects import ElasticGPUClass
from egpu.core.provisioners import PROVISIONERS, provisioner
from egpu.errors import InvalidDemand

SHAREABLE: Final = "shareable"
VALUES: Final = ("true", "false")


def is_shareable(klass: ElasticGPUClass) -> bool:
    """Whether several pods may use one claim of the class.

    Raises InvalidDemand, naming the parameter, for a technology that cannot do it, and UnknownProvisioner.
    """
    if (klass.parameters or {}).get(SHAREABLE) != "true":
        return False
    technology = provisioner(klass.provisioner)
    if not technology.shareable:
        able = ", ".join(entry.name for entry in PROVISIONERS.values() if entry.shareable)
        reason = f"{technology.name} cannot hold several pods to one slice together; use one of {able}"
        raise InvalidDemand(f"parameters[{SHAREABLE}]", f"{reason}, or give each pod a claim of its own")
    return True
