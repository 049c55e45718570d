"""kubelet's two gRPC APIs over unix sockets, typed: device plugin v1beta1 and pod-resources v1, both ends of each.

    deviceplugin    a plugin's server and registration, and kubelet's side of them
    registrar       keeps a plugin registered, also when kubelet starts anew
    podresources    who holds which device ids
    channels        what both share: channels, servers, errors as gRPC statuses

The `.proto` files are ours, with the documented names and field numbers; `*_pb2*` beside them are generated
(`scripts/generate_protos.py`). Nothing outside this package sees a generated message: the rest of the program
speaks the frozen dataclasses of `deviceplugin` and `podresources`.
"""
