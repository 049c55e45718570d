"""Dynamic resource allocation: our cards and classes as Kubernetes' own scheduler reads them, and what it gave out.

    devices        cards → devices and their slices
    configuration  the opaque configuration of classes and claims
    grants         an allocated claim → the slices that a node prepares
    held           allocated claims as holders of cards in a ledger
    consumers      who uses them, so that they are free when these are gone
    marking        what a claim needs before it is allocated
    kept           the part of a claim that is kept, limited in size
    references     the claims of a pod, and the nodes of a claim
    asking         a claim → what it asks for, as the extender's demands
    choosing       the claims of a pod → node and cards, by the extender's policies
    explaining     a pod with claims, for people
    together       the same for the pods of a gang, all or none
    classes        an ElasticGPUClass → its DeviceClass

Pure. NOT here: kubelet's calls and the API server (`egpu.apps.agent.dra`).
"""
