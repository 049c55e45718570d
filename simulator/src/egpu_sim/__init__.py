"""A CUDA driver, NVML, the CUDA libraries and a small Kubernetes on any laptop, without a GPU.

    machines    simulated machines with cards: made, found, moved in time, broken on purpose, removed
    cluster     a small Kubernetes: API server, controllers, scheduler, kubelets
    cli         `egpu-sim`
    native      where the simulated driver, its libraries and its tools are

How a card computes is C, in `simulator/native`.
"""

__version__ = "0.1.0"
