"""The controllers of kinds that make pods, and two of kinds that pods use, in the place of kube-controller-manager.

    manager          the loops of one cluster, and the changes that wake them
    kinds            the kinds they work on, and their common shape
    pods             the pods of one owner: claimed, ended
    making           new pods; longer and longer waits after refusals
    revisions        names of templates, to tell pods of old ones apart
    deployments      one replica set per template; from the old to the new by steps
    replica_sets     the wanted number of pods
    daemon_sets      one pod on every node that takes it
    stateful_sets    pods with numbers, one after the other
    jobs             pods until enough of them have succeeded
    disruption       how many of the pods that a budget selects may be evicted
    resource_claims  claims of devices that templates describe; claims that are no longer used

Left out: ControllerRevisions (so no `kubectl rollout undo` of daemon sets and stateful sets), volume claim templates,
pod failure and success policies of jobs, CronJobs, and autoscalers.
"""

from egpu_sim.cluster.controllers.manager import Controllers

__all__ = ["Controllers"]
