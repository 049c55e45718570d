"""Dynamic resource allocation: what scheduler, controllers and kubelets share. Pure, beside the kinds.

kinds        claims, templates, classes and slices as these components read them
references   the claims of a pod, and the pods of a claim
users        the pods that name a claim
selectors    the devices that expressions select
capacities   amounts of shared devices: asked for, consumed, and left
pools        the devices that a node can use
requests     the requests of claims, joined with their classes
constraints  attributes that devices of a claim must share, or must not
search       the first devices that satisfy all claims of a pod
"""
