"""`parameters: {shareable: "true"}` of a class: several pods may use one claim of it at the same time.

The pods share one slice: their usage is added up and limited to the claim's amount. The word is the one of Kubernetes'
dynamic resource allocation. Access modes, as volumes have, would not fit: the technology decides which nodes reach a
GPU, and nothing is read-only.
"""

from collections.abc import Mapping
from typing import Final

from egpu.core.provisioners import Provisioner
from egpu.core.provisioners.parameters import TRUE_OR_FALSE, is_true

SHAREABLE: Final = "shareable"
VALUES: Final = TRUE_OR_FALSE


def is_shareable(parameters: Mapping[str, str], technology: Provisioner) -> bool:
    """Return whether several pods may use one claim of the class.

    Raises InvalidDemand, naming the parameter, for a technology that does not support it.
    """
    return is_true(
        parameters, SHAREABLE, technology, supports=lambda one: one.shareable, what="several pods on one slice",
        instead=", or give each pod a claim of its own",
    )  # fmt: skip
