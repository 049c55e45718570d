"""A scheduler for the embedded cluster that behaves as kube-scheduler does with an extender: the same calls, the same
messages, and the same reasons to look at a waiting pod again.

    loop         takes each pod through filters (`egpu.core.placement.node_filters`), extender, preemption and binding
    queue        who is next, and who waits for what
    events       which changes of the cluster let a rejected pod be looked at again
    scoring      how much kube-scheduler itself likes a node
    preemption   which pods would have to go for another of higher priority
    messages     why a pod fits nowhere, in kube-scheduler's words
    usage        what the pods of each node hold
    extender     the extender's protocol, from the scheduler's side

No replacement for kube-scheduler: it has no inter-pod affinity, no topology spread, no volumes, no disruption
budgets.
"""
