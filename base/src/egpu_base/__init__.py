"""The shared base of Elastic GPU and its simulator. It knows no cards and no slices.

    errors      every exception that one package raises for another to handle
    api         shapes of Kubernetes' objects, quantities, the extender protocol: data only
    cel         expressions of Kubernetes' conditions and selectors
    runtime     asyncio without Kubernetes
    system      files, processes, mounts and labels of this machine
    tls         certificates
    http        serving HTTP
    kubernetes  the API server: client, reflector, election
    monitoring  health for everyone, metrics for authorized readers
    kubelet     kubelet's gRPC APIs, and the Container Device Interface
    native      finds the native parts of a package
    compilers   settings for programs that compile kernels, where they cannot ask the card

Imports go down only: `.importlinter` enforces the order.
"""

__version__ = "0.1.0"
