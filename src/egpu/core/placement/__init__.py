"""Who holds what, where a request fits, and which place it gets.

cache         SchedulerCache: objects in, ledger and answers out
published     what published objects say to the ledger
published_cards  the cards that agents publish, node by node
cards         Card, NodeCards: cards as the scheduler knows them
ledger        who holds what, and what is left, as arrays
known_needs   what demands take of each kind of card
node_names    the nodes that somebody asks about, by number
usage         what allocations take of a card, and when it is too much
hosts         CPU and memory of nodes
reservations  what is kept for pods whose victims are about to end
node_filters  whether a node takes a pod, cards aside: kube-scheduler's rules
requests      from a pod or a claim to a Request
fit           where a request fits, and which cards it gets
given         what a container gets, as its pod will say it
candidates    cards of some nodes while containers of one pod are put on them
instances     which instance of MIG each container takes, and where it is
search        exactly, by bounded backtracking
remote        cards of other nodes: the pool
refusal       why it does not fit, in sentences
ranking       which of the places that fit is best: how a policy is asked
mirror        the ledger as a Fleet, which policies look at
binding       what the Binding carries into the pod
"""
