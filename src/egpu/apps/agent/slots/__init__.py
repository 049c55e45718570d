"""Slots: one for each GPU container, registered with kubelet as `elasticgpu.io/slot`, and its directory.

    plugin       the device plugin: Allocate answers with names made of the slot id, PreStartContainer fills the slot
    offering     the plugin on a node with a shim, which answers kubelet
    owners       finds the owner of a slot, from pod-resources and the pod
    preparer     fills a slot with its owner's allocation, for any caller
    directories  the slot directories: complete or absent, and their owners
    devices      the device files that a container may open
    cdi          the CDI devices: the meaning of a slot's name for the container runtime
    injection    chooses CDI or paths, by what the node supports
    resizer      gives running slices another size, and reports the sizes in force
    parker       asks programs to park or to wake, as their pod says
    sweeper      removes slots that no container has any more
    leftovers    ends processes of pods whose object is gone
    former       waits until earlier users of a card have left it

NOT here: what a technology needs in a slot (`egpu.core.provisioners`), executors (`egpu.apps.agent.serving`),
claims of resource.k8s.io (`egpu.apps.agent.dra`)."""
