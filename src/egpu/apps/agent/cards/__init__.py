"""The node's cards: what the driver says of them, and what the cluster is told.

    inventory    the cards as they are now, read again and again
    instances    makes and destroys instances of MIG
    mps          an MPS server for each card that slices of MPS are of
    publisher    an ElasticGPU per card, and the node's capacity under every vocabulary
    time_slices  how long programs keep a card while others wait for it

Not here: reading NVML (`egpu.adapters.nvml`).
"""
