"""Evictions for a more important pod: the victims, and the cards that it then gets. Pure.

budgets        how many evictions a PodDisruptionBudget allows
victims        the pods that may be evicted, which go together, and what they cost
search         the cheapest of the sets that help
outlook        which sets cannot help, without asking the ledger
population     the pods that have a node, few of which have to be read
sums           the other resources of nodes, without some pods
neighbours     conflicts between pods: host ports, required anti-affinity
objections     why Kubernetes' scheduler rejects a node, cards aside, in sentences
scene          the input of a plan, and its result
victim_search  the cheapest victims for one pod or gang
plan           the victims for a pod, and the cards that it then gets
explaining     why a pod waits, with its plan
"""
