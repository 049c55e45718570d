"""Executors: processes that have the cards and work for programs without a GPU.

    record         the record of an executor: its owner, cards, limits and process
    process        one executor: started, found again, resized, measured, ended
    leftovers      processes of an executor that its record does not name
    moving         asks an executor to send its sessions to another
    confinement    limits and isolation of an executor, as far as this machine has them
    cgroups        control groups, on cgroup v2
    users          a user for each executor
    images         what modules a caller's programs have sent, kept for its next lease
    libraries      libraries of NVIDIA that executors call
    networks       networks for the ranks of NCCL
    parents        the parent process of executors, with which they would end
    supervisor     the executors of one kind of owner: compares orders with what runs

qGPU slots and pods of other nodes (`egpu.apps.agent`) and leases (`egpu.apps.serve`) use them alike, each with an owner
of its own in the record. NOT here: who may have an executor, and how programs reach it (`egpu.adapters.pool`).
"""
