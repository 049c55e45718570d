"""kubelet's gRPC APIs over unix sockets, typed: device plugin v1beta1, DRA v1 and pod-resources v1, both ends of each.

    deviceplugin    a plugin's server and registration, and kubelet's side of them
    dra             drivers of dynamic resource allocation, their registration, and kubelet's side of both
    podresources    who holds which device ids
    channels        what all share: channels, servers, errors as gRPC statuses
    cdi             the Container Device Interface: files that say what a device of a container is

The `.proto` files are ours, with the documented names and field numbers. Generated messages stay inside this package;
the rest of the program uses the frozen dataclasses of `deviceplugin`, `dra` and `podresources`.
"""
