"""Pure decisions: values in, values out. No I/O, no clock, no knowledge of Kubernetes beyond its objects.

    bill          what GPU time is lost, and the cheapest thing that would recover it
    view          the cluster as one looks at it: cards, their slices, what is used of them, and who waits
    admission     what is filled in and what is refused when objects are created or changed
    preemption    who has to go so that a more important pod gets its cards
    explain       why a pod waits, or why it is where it is
    resizing      slices that change their size while they run
    quotas        what a namespace's quotas say to a slice that grows
    waking        which of the waiting pods would find room now
    simulation    whole workloads, replayed on arrays
    leasing       who gets which cards of the pool, and for how long
    overruns      when memory beyond a slice's limit has a consequence
    backoff       how long somebody waits whose slice was ended for that
    claims        the state machine of claims and slices
    gangs         pods that are placed all or none
    placement     who holds what, where a request fits, and which place it gets
    policies      which of the fitting nodes and cards is preferred
    demand        what pods and claims ask for, in one form
    provisioners  the technologies, one file each, and what a node agent prepares
    attributes    which cards a demand selects by what they are, and which it would rather have
    links         how fast the cards of a node are joined
    mig_plan      what to cut cards into for a job mix
    mig           where instances of MIG go on a card
    changes       which rows of arrays changed, and what is kept of them
    arrays        types of arrays

What is above may import what is below; `.importlinter` has it in detail. The extender, and the command line from lists,
drive all of it through `placement.cache.SchedulerCache`:

    cache.gpu_changed(egpu), pod_changed(pod), …         objects in, as list and watch show them
    request = cache.request(pod)                         what it asks for; raises InvalidDemand, CorruptData
    cache.filter(request, nodes)                         `.fits` names, `.refusals()` {node: Refusal(reason, …)}
    cache.ranking.scores(request, nodes, policies)       {node: 0..1}
    cache.ranking.choose(request, node, policies)        PodAllocation; raises DoesNotFit with the whole explanation
    cache.assume_pod(pod, allocation), forget_pod(uid)   from bind until the watch shows the pod; likewise for claims
"""
