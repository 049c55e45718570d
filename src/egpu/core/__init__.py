"""Pure decisions: values in, values out. No I/O, no clock, no knowledge of Kubernetes beyond its objects.

    demand        read_pod(pod, claims, classes) → PodDemand, [InvalidDemand]       what is asked for, normalised
                  claim_demand(claim, class) → ContainerDemand
                  claims_by_container(pod) → {container: claim name}
    provisioners  provisioner(name) → Provisioner                                    the technologies, one file each
    ledger        Ledger, NodeCards, Card, Holder, Usage                             who holds what, as arrays
    fitting       filter_nodes, choose, score_nodes, refusal                         where it fits, and why it does not
                  (search: exactly, refusal: in sentences)
    requests      pod_request, claim_request, claim_allocations                      what waits, and for what
    policies      policy(name) → Policy; Policies(node=…, card=…)                    binpack, spread
    feed          Feed                                                               objects in, ledger and answers out
    binding       binding_annotations(pod, allocation, assume_time_ns=…)             what the Binding carries
    admission     mutate_pod, validate_pod_create/_update, validate_binding/_claim/_class/_egpu
    claims        reconcile_claim, reconcile_gpu → actions                           the claim's state machine
    explain       explain_pod(pod, feed, nodes) → Explanation                        why it waits, or why it is there

`Feed` is what the extender (and the CLI, from lists) drives:

    feed.gpu_changed(egpu) / gpu_deleted(name); class_changed(cls) / class_deleted(name);
    feed.claim_changed(claim) / claim_deleted(uid); pod_changed(pod) / pod_deleted(uid)     (list + watch)
    request = feed.request(pod)              Request; raises InvalidDemand, CorruptData
    request = feed.claim_request(claim)      the same for an Immediate claim, as a pod of one container
    filtered = feed.filter(request, nodes)   `.fits` names, `.refusals()` {node: Refusal(reason, …)}
    feed.scores(request, nodes, policies)    {node: 0..1}
    feed.choose(request, node, policies)     PodAllocation; raises DoesNotFit with the whole explanation
    feed.assume_pod(pod_uid, allocation) / forget_pod(pod_uid)         from bind until the watch shows the pod
    feed.assume_claim(claim_uid, ClaimAllocation) / forget_claim(uid)  likewise for claims
    feed.problems()                          over-commits, corrupt annotations: sentences
"""
