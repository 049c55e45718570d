"""Slots: one for each GPU container, registered with kubelet as `elasticgpu.io/slot`, and the directory that it sees.

    plugin       the device plugin: Allocate answers with what is named by slot id, PreStartContainer has it filled
    offering     the plugin where the node's shim answers kubelet
    owners       whose slot is it? from pod-resources and the pod
    preparer     makes a slot what its owner was given, knowing nothing of who asks
    directories  the slot directories: complete or absent, and whose each is
    devices      the device files: which a container may open
    cdi          the CDI devices: what a slot's name means to the container runtime
    injection    CDI or paths? from what the node can
    resizer      gives running slices another size, and says which are in force
    sweeper      removes slots that nobody holds any more
    remains      what is left of a pod whose object is gone

Not here: what a technology needs in a slot (`egpu.core.provisioners`), executors (`egpu.apps.agent.serving`).
"""
