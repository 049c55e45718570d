"""Pure decisions: values in, values out. No I/O, no clock, no knowledge of Kubernetes beyond its objects.

    following     which stage of its way from admission to CUDA a pod has not passed
    bill          lost GPU time, and the cheapest way to recover it
    view          the cluster for people: cards, their slices, their usage, and the pods that wait
    remaking      pods that a kubelet refused for lack of room
    admission     defaults and checks when objects are created or changed
    hiding        containers that ask for no card, and must not see any
    spelling      known names that a mistyped one is like
    mounts        a new pod's own mounts over its slice
    preemption    which pods to evict for a more important pod
    dra           devices, claims and classes of Kubernetes' own dynamic resource allocation
    explain       why a pod waits, or why it is where it is
    explain_claim   … a claim
    explain_node    the cards of a node, and why waiting pods do not fit
    schedulers    which scheduler a GPU pod goes to
    resizing      slices that change their size while they run
    quotas        the quotas of a namespace, for cards that Kubernetes did not count
    host_quotas   … for nodes' memory that parked slices need
    growth        what new nodes would change for a waiting pod, as values
    new_nodes     … found by placing it on nodes that are like the cluster's
    waking        which of the waiting pods would find room now
    rests         how long namespaces wait after long looks in vain
    moves         which pods to move so that others fit
    replay        whole workloads, replayed on arrays
    leasing       the pool's leases: which program gets which cards, and for how long
    contexts      the memory of an empty context, by card model
    overruns      when memory beyond a slice's limit has a consequence
    arbiter       which slices have their memory on a card that has too little for all
    thrashing     cards whose slices wait for each other's room most of the time
    backoff       the wait after a slice was terminated for an overrun
    claims        the state machine of claims and slices
    gangs         pods that are placed all or none
    neighbours    groups of pods that other projects define, such as JobSets and PodGroups
    placement     the ledger of cards, where a request fits, and its best place
    policies      which of the fitting nodes and cards is preferred
    demand        requests of pods and claims, in one form
    offered       the resource names that nodes publish, and nodes that must publish none
    rivals        other programs that give out cards of a node
    node_condition  whether a node's agent offers the cards, and why not
    gpu_nodes     nodes with cards, by labels of this and other projects
    provisioners  the technologies, one file each, and what a node agent prepares
    attributes    which cards a demand selects and prefers, by their attributes
    selectors     expressions in CEL that select cards
    links         how fast the cards of a node are linked
    mig_plan      a plan of MIG instances for a job mix
    mig           where MIG instances go on a card
    kept_claims   the part of a claim that is kept, limited in size
    kept_pods     the part of a pod that is kept, limited in size
    changes       which rows of arrays changed, and cached answers about them
    arrays        types of arrays
    json_patch    operations of a JSON patch

Modules import only from below themselves in this list; `.importlinter` has the details. The extender, and the command
line from lists, drive all of it through `placement.cache.SchedulerCache`:

    cache.gpu_changed(egpu), pod_changed(pod), …         objects in, as list and watch show them
    request = cache.request(pod)                         the pod's request; raises InvalidDemand, CorruptData
    cache.filter(request, nodes)                         `.fits` names, `.refusals()` {node: Refusal(reason, …)}
    cache.ranking.scores(request, nodes, policies)       {node: 0..1}
    cache.ranking.choose(request, node, policies)        PodAllocation; raises DoesNotFit with the whole explanation
    cache.assume_pod(pod, allocation), forget_pod(uid)   from bind until the watch shows the pod; likewise for claims
"""
