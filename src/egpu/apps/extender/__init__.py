"""The scheduler extender: sees every card of every node, and is the only writer of placements.

    app               puts an extender together and runs it
    config            what it can be told
    server            kube-scheduler's protocol
    questions         what kube-scheduler asks about a pod, read
    name_lists        lists of names of nodes in JSON, read and written
    answers           what kube-scheduler is told of nodes, written
    placing           filter, prioritize, preempt: questions that change nothing
    binding           bind: choose, assume, one POST
    preempting        evicts for pods of higher priority, and keeps their room for them
    waking            tells the scheduler of room that it cannot see
    gangs             what becomes of a gang of which only a part is bound
    claim_writer      claims get their cards: at once, or with their first pod
    resizing          gives running slices another size: what may have to be, and claims
    pod_sizes         the same for pods, and those that use claims
    card_status       what people see of a card: how much of it is given out, and to whom
    view              caches (list + watch) feed the scheduler cache; a restart rebuilds it, there is no other state
    mix               the job mix that prices follow, kept across restarts
    fence             why two extenders never give out one card twice
    filtered          which nodes a pod may be bound to
    metrics           what it tells Prometheus
    scheduler_config  the KubeSchedulerConfiguration that makes kube-scheduler ask it

NOT here: whether and where a demand fits (`egpu.core`), phases and slices of claims (`egpu.apps.controller`).
"""

from egpu.apps.extender.app import Extender, run
from egpu.apps.extender.config import ExtenderConfig
from egpu.apps.extender.scheduler_config import scheduler_config

__all__ = ["Extender", "ExtenderConfig", "run", "scheduler_config"]
