"""All I/O: each module or package talks to one outside system, in that system's own words.

    cards           the cards of this machine, through NVIDIA's interfaces
    programs        start of programs inside a slice
    kubernetes      the cluster as our components follow it
    nothing         a device plugin without devices, by which kubelet refuses pods
    registrar       keeps the device plugin registered, also after kubelet's restart
    slices          the two files of a slice: its limits and its use
    executors       processes with a card, for programs without one
    shim            the protocol between a node's agent and its shim
    pool            connections between programs, broker and servers, and their authentication
    local           slices of this machine's own cards, without a cluster
    native          finds the native libraries and programs
    name_table      lists of names in JSON, as numbers
    installation    the objects that deploy/ installs
    values          what a site may choose of them
    traces          workloads as CSV files

NOT here: deciding anything about cards (`egpu.core`), and timing (`egpu.apps`).
"""
