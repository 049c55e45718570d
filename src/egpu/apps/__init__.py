"""The processes: each wires adapters and decisions together. Apps do not import each other.

webhook       turns every way of asking into one demand, refuses impossible ones
extender      chooses cards; the only writer of placements
agent         on each node: publishes its cards, prepares slots
shim          beside the agent: what must outlive it, kubelet's trust and executors
controller    manages the life of claims, removes leftovers
dashboard     the cluster as web pages
broker        the pool: grants leases
serve         the pool: runs executors on a machine's cards, as the broker orders
install       no process: puts the others on a cluster, and takes them away
"""
