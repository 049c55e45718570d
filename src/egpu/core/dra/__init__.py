"""Dynamic resource allocation: our cards and classes as Kubernetes' own scheduler reads them, and what it gave out.

    devices        cards → devices and their slices
    configuration  the opaque configuration of classes and claims
    grants         an allocated claim → the slices that a node prepares
    holding        an allocated claim as a holder of cards, for display
    classes        an ElasticGPUClass → its DeviceClass

Pure. NOT here: kubelet's calls and the API server (`egpu.apps.agent.dra`).
"""
