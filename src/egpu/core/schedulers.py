"""Which scheduler a GPU pod goes to: one that asks our extender."""

from dataclasses import dataclass
from typing import Final

from egpu.api.admission import JSONPatch
from egpu.core.json_patch import add
from egpu_base.api.kubernetes import Pod

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The name that the API server writes into pods without one."""
OWN_SCHEDULER: Final = "elastic-gpu-scheduler"
"""The name of the scheduler that deploy/ installs."""


@dataclass(frozen=True)
class Schedulers:
    """`own`: the scheduler for GPU pods that name none; empty: every scheduler of the cluster may have the extender.
    `others`: further schedulers that ask the extender."""

    own: str = ""
    others: tuple[str, ...] = ()

    def objection(self, pod: Pod) -> str | None:
        """Return why a GPU pod's scheduler cannot place it, or None."""
        named = pod.spec.scheduler_name or DEFAULT_SCHEDULER
        if not self.own or named in (self.own, DEFAULT_SCHEDULER, *self.others):
            return None
        known = ", ".join((self.own, *self.others))
        return (
            f"is {named!r}, which does not ask Elastic GPU's extender, so the pod would wait for ever; remove the "
            f"field, or use one of: {known}. If {named!r} is configured with the extender, an administrator lists it: "
            f"`scheduler.others` of the chart, `--other-schedulers` of the webhook"
        )

    def patch(self, pod: Pod) -> JSONPatch:
        """Return the patch that names our scheduler in a GPU pod that names none."""
        if not self.own or (pod.spec.scheduler_name or DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER:
            return []
        return [add(self.own, "spec", "schedulerName")]


ANY: Final = Schedulers()
"""Every scheduler may have the extender."""
