"""Policies: which of the fitting nodes and cards is preferred, the same in the extender, the broker and simulations.

base        Policy: `rank_nodes`, `rank_cards`, and methods that only some policies need
registry    policies by name, and `Policies`: one for the node and one for its cards
baselines   best-fit, GPU packing, dot product, random, binpack, spread
fgd         fragmentation gradient descent
price       a place costs what the rest of the job mix could have made of it
prices      the prices of `price`, computed from the job mix
patterns    worth of a card's remainder while a cluster fills: a configuration LP
chances     worth of a card's remainder where pods depart
stranding   GPU that a node's CPU and memory can no longer serve
host_scarcity  whether CPU or memory runs out before GPU
reserve     charges for the last hosts of pods with several cards
learning    the job mix, learned from arrivals
fleet       free resources of many nodes as arrays, and which rows changed when
placer      the best place for a pod, from cached and refreshed scores
shapes      the items and bins: pods and machines as plain numbers
"""
