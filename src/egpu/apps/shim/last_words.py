"""The last act of a shim whose agent was killed: kubelet refuses pods that ask for what the agent published.

An agent withdraws its amounts when its DaemonSet is removed (`egpu.apps.agent.farewell`). If it is killed before, the
amounts stay in the node's status, where kubelet would start a pod that asks for them alone, without a GPU. So a shim
that ends without an agent registers these names as a device plugin without devices. If both are only replaced, the
new agent publishes again when kubelet has forgotten that plugin, after five minutes.
"""

from pathlib import Path
from typing import Final

import structlog

from egpu.adapters.nothing import offer_nothing
from egpu.adapters.shim import ShimDirectory
from egpu.adapters.shim.amounts import left_behind
from egpu_base.errors import ElasticGPUError

SECONDS: Final = 20.0
"""kubelet ends a pod after 30 seconds; an agent that says farewell takes up to 15."""

log = structlog.get_logger(__name__)


async def last_words(directory: ShimDirectory, kubelet_dir: Path, *, seconds: float = SECONDS) -> None:
    """Have kubelet refuse what a killed agent published. Never raises: the process ends."""
    names = await left_behind(directory.amounts, seconds=seconds)
    if not names:
        return
    try:
        await offer_nothing(kubelet_dir, names)
    except (ElasticGPUError, TimeoutError, OSError) as error:
        log.warning("the node's amounts stay; run egpu uninstall", reason=str(error) or "kubelet did not answer")
    else:
        directory.amounts.unlink(missing_ok=True)
        log.info("the agent was killed: kubelet refuses pods that ask for a GPU")
