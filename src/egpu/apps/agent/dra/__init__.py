"""Dynamic resource allocation: on a node with `elasticgpu.io/allocator=dra`, kube-scheduler gives out the cards.

    allocator     which of the two ways holds on the node, and the change from one to the other
    slices        publishes the cards as ResourceSlices
    registration  the driver's sockets for kubelet
    driver        prepares and removes the slots of ResourceClaims
    claims        reads ResourceClaims, and writes what their devices got
    users         the pods that share a ResourceClaim
    specs         slots of claims as CDI devices, with their files
    way           these parts together

A claim's request has one slot, which all containers that use the claim share. The slot directory is the only state:
each call of kubelet can be repeated, after a kill at any moment and after a reboot.
"""
