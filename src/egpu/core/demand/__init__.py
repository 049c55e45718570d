"""What is asked for, normalised: any vocabulary in, one `ContainerDemand` for each container out.

    pods       of a pod: its containers' resources, its annotations, the claims that it names
    claims     of a claim: by the parameters of its class
    bounds     how much a class lets its claims ask for
    amounts    the numbers, by the same rules for both
    counted    what a quota counts of them, one unit for all vocabularies
    selection  which card models a pod accepts, by the nodes that it selects

Not here: what a demand takes of a card (`egpu.core.provisioners`).
"""
