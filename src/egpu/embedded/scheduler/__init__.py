"""A plain scheduler for the embedded cluster, one pod after the other.

    loop         takes each pod through the checks, the extender and the binding
    predicates   whether a node can take a pod, as far as Kubernetes itself is concerned
    usage        what the pods of each node hold
    extender     the extender's protocol, from the scheduler's side

No replacement for kube-scheduler: it has no preemption, no inter-pod affinity and no topology spread.
"""
