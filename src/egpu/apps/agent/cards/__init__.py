"""The node's cards: what the driver reports, and what the cluster is told.

    inventory      the cards as they are now, read again and again
    mig_instances  creates and destroys MIG instances
    capacity       the amounts that a node publishes for its cards, in every vocabulary
    mps_servers    runs an MPS server for each card with MPS slices
    publisher      publishes an ElasticGPU per card, and the capacity
    time_slices    sets how long programs keep a card while others wait for it

NOT here: reading NVML (`egpu.adapters.cards.nvml`)."""
