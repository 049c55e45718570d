"""Who has to go so that a more important pod gets its cards. Pure.

budgets     how many pods a PodDisruptionBudget lets go
victims     whom a pod may evict, who goes with whom, and what it costs
search      the cheapest of the sets that help
outlook     which sets cannot help, without a look at the ledger
sums        what nodes have beside cards, with some pods gone
plan        whom to evict for a pod, and which cards it then gets
explaining  why a pod waits, with its plan
"""
