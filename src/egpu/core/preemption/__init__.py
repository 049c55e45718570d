"""Who has to go so that a more important pod gets its cards. Pure.

budgets        how many pods a PodDisruptionBudget lets go
victims        whom a pod may evict, who goes with whom, and what it costs
search         the cheapest of the sets that help
outlook        which sets cannot help, without a look at the ledger
population     the pods that have a node, few of which have to be read
sums           what nodes have beside cards, with some pods gone
neighbours     what pods forbid each other: host ports, required anti-affinity
objections     why Kubernetes' scheduler would not give a node, cards aside, in sentences
scene          the cluster as a plan looks at it, and what comes of a plan
victim_search  the cheapest victims for one pod or gang
plan           whom to evict for a pod, and which cards it then gets
explaining     why a pod waits, with its plan
"""
