"""A scheduler for the simulated cluster that behaves as kube-scheduler does with an extender: the same calls, the same
messages, and the same reasons to look at a waiting pod again.

    loop         takes each pod through filters, extender, preemption and binding
    queue        the pods that wait, and the one that is next
    events       the changes of the cluster after which a rejected pod is looked at again
    filters      the default filter plugins, from kube-scheduler's documentation
    spreading    the one for topology spread
    neighbours   the one for affinity and anti-affinity between pods
    requests     the resources that a pod requests
    devices      claims of devices: allocated, reserved and written
    scoring      kube-scheduler's own scores of a node
    preemption   the pods that would have to go for another of higher priority
    messages     the reasons why a pod fits nowhere, in kube-scheduler's words
    usage        the pods of each node, and what they hold
    extender     the extender's protocol, from the scheduler's side
    own          a second scheduler with a name of its own

It does not replace kube-scheduler: it ignores volumes, disruption budgets and all preferences (`ScheduleAnyway`,
`preferredDuringScheduling…`). It refuses pods with other features that it does not have, by name.
"""
