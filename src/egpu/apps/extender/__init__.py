"""The scheduler extender: sees every card of every node, and is the only writer of placements.

    app                  assembles an extender and runs it
    config               its settings
    server               kube-scheduler's HTTP protocol
    questions            reads kube-scheduler's requests about a pod
    name_lists           lists of node names in JSON, read and written
    answers              writes answers about many nodes
    sole_answers         when the filter names only the best node
    placing              filter, prioritize, preempt: requests that change nothing
    binder               bind: choose, assume, one POST
    preemptor            evicts pods for more important ones, and keeps the room for them
    waker                tells kube-scheduler about room that it cannot see
    gang_controller      repairs gangs of which only a part is bound
    claim_writer         gives claims their cards: at once, or with their first pod
    device_claims        gives waiting pods the ResourceClaims of priced nodes
    claim_looks          how soon to look again for claims that found no cards
    device_claim_writer  writes their allocations
    resizer              gives running slices another size: the queue, and claims
    pod_sizes            the same for pods, and for pods that use claims
    quotas               a namespace's quotas, for cards that Kubernetes did not count
    card_status          shows on each card how much is allocated, and to whom
    view                 list and watch feed the scheduler cache; a restart rebuilds it, there is no other state
    job_mix              the job mix behind the prices, kept across restarts
    fence                why two extenders never give out the same card
    filter_results       remembers which nodes a pod may be bound to
    metrics              the extender's Prometheus metrics
    scheduler_config     the KubeSchedulerConfiguration that makes kube-scheduler ask the extender

NOT here: whether and where a demand fits (`egpu.core`), phases and slices of claims (`egpu.apps.controller`)."""

from egpu.apps.extender.app import Extender, run
from egpu.apps.extender.config import ExtenderConfig
from egpu.apps.extender.scheduler_config import scheduler_config

__all__ = ["Extender", "ExtenderConfig", "run", "scheduler_config"]
