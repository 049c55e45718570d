"""Normalised demands: any vocabulary in, one `ContainerDemand` per container out.

    pods       demands of pods: their containers' resources, annotations and claims
    templates  claims of a pod's own, from its annotations
    claims     demands of claims, under the terms of their class
    classes    the terms of a class: its technology and parameters, read once
    bounds     the amounts that a class lets its claims ask for
    limits     limits of compute above the request
    kinds      latency or batch work, by class or priority
    amounts    the numbers, by the same rules for both
    counted    the amounts that a quota counts, one unit for all vocabularies
    others     annotations, labels and variables of other projects
    typos      mistyped names of ours
    selection  which card models a pod accepts, by the nodes that it selects

Not here: what a demand takes of a card (`egpu.core.provisioners`).
"""
