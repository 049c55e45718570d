"""The ledger of cards, where a request fits, and which place it gets.

cache         SchedulerCache: objects in, ledger and answers out
published     published objects as the ledger's values
published_cards  the cards that agents publish, node by node
promises      cards kept for pods of a group that kube-scheduler places as a whole
cards         Card, NodeCards: cards as the scheduler knows them
ledger        the holders of cards, and what is left, as arrays
known_needs   what demands take of each kind of card
node_names    the nodes of a question, by number
sums          what kube-scheduler's sums of a node count too much
card_usage    what allocations take of a card, and when it is too much
hosts         CPU and memory of nodes
reservations  cards reserved for pods whose victims are about to end
node_filters  whether a node takes a pod, cards aside: kube-scheduler's rules
requests      from a pod or a claim to a Request
fit           where a request fits, and which cards it gets
container_allocation  the allocation of a container, as its pod carries it
candidates    cards of some nodes while containers of one pod are placed on them
limit_sums    sums of limits of compute on those cards, and their bounds
instances     which MIG instance each container takes, and its place
search        exact placing, by bounded backtracking
remote        cards of other nodes: the pool
refusal       why it does not fit, in sentences
ranking       which of the places that fit is best: how a policy is asked
mirror        the ledger as a Fleet, which policies use
binding_annotations  the annotations of a Binding
"""
