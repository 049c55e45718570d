"""One process each: adapters and decisions wired together, and when something is done. They do not import each other.

webhook       turns every way of asking into one demand, refuses what cannot be one
extender      chooses cards; the only writer of placements
agent         on each node: publishes its cards, prepares slots
shim          beside the agent: what must outlive it, kubelet's trust and executors
controller    carries claims through their life, sweeps up
dashboard     the cluster as a web page
broker        the pool: who gets what
serve         the pool: a machine's cards, as the broker orders
"""
