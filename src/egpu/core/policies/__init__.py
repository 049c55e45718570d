"""Which of the fitting nodes and cards is preferred: the same policies in the extender, the broker and the simulator.

base        Policy: `rank_nodes`, `rank_cards`, and what only some policies do
registry    policies by name, and `Policies`: one for the node and one for its cards
baselines   best-fit, GPU packing, dot product, random, binpack, spread
fgd         fragmentation gradient descent
price       a place costs what the rest of the job mix could have made of it
prices      what `price` decides by, computed from the job mix
patterns    worth of what is left of a card while a cluster fills: a configuration LP
chances     the same where pods depart
stranding   GPU that a node's CPU and memory can no longer serve
binding     whether GPU or what nodes have beside it runs out first
reserve     charges for the last hosts of pods with several cards
learning    the job mix, learned from what arrives
fleet       free resources of many nodes as arrays, and which rows changed when
placer      the best place for a pod, from ranks that are kept and refreshed
shapes      what is packed into what: pods and machines as plain numbers
"""
