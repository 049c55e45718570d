"""Groups of pods that other projects define: which pods are of which group, and which groups are gangs.

table     the neighbours, one entry each: how their pods name a group, and which object says its size
sizes     that object, as a number of pods
reading   a group as the annotations of a gang, from that object

A neighbour's group is a gang only if its object says so, or if its pods ask for it (`names.GANG_FROM`). Kubernetes
places pods one by one by default, and a group whose pods appear one after the other would wait forever as a gang.
"""
