"""What kube-controller-manager would be, small enough for a laptop: the controllers of the kinds that make pods.

    manager        the loops of one cluster, and what wakes them
    kinds          the kinds they work on, as far as all of them look alike
    pods           the pods of one owner: claimed, made, ended
    revisions      which template a pod is of
    deployments    one replica set per template; from the old to the new by steps
    replica_sets   as many pods as are wanted
    daemon_sets    one pod on every node that takes it
    stateful_sets  pods with numbers, one after the other
    jobs           pods until enough of them have succeeded
    disruption     how many of the pods that a budget selects may be evicted

Left out: ControllerRevisions (so no `kubectl rollout undo` of daemon sets and stateful sets), volume claim templates,
pod failure and success policies of jobs, CronJobs, and autoscalers.
"""

from egpu.embedded.controllers.manager import Controllers

__all__ = ["Controllers"]
