"""The scheduler extender: sees every card of every node, and is the only writer of placements.

    server        kube-scheduler's protocol ─► placing   filter, prioritize, preempt: questions that change nothing
                                            ─► binding   bind: choose, assume, one POST
    gangs         what becomes of a gang of which only a part is bound
    claim_writer  claims get their cards: at once, or with their first pod
    view          caches (list + watch) ─► the core's ledger; a restart rebuilds it, there is no other state
    fence         why two extenders never give out one card twice

NOT here: whether and where a demand fits (`egpu.core`), phases and slices of claims (`egpu.apps.controller`).
"""

from egpu.apps.extender.app import Extender, run
from egpu.apps.extender.config import ExtenderConfig
from egpu.apps.extender.scheduler_config import scheduler_config

__all__ = ["Extender", "ExtenderConfig", "run", "scheduler_config"]
