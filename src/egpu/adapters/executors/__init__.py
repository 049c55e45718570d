"""Executors: the processes that have the cards and do what programs without a GPU ask.

    record         what is kept beside an executor: whose it is, its cards and limits, its process
    process        one executor: started, found again, resized, measured, ended
    leftovers      processes of an executor that its record does not name
    confinement    what keeps an executor small and away from all else, and what of it this machine has
    cgroups        control groups, on cgroup v2
    users          a user for each executor
    images         what modules a caller's programs have sent, kept for its next lease
    networks       where ranks of NCCL meet
    parents        whose children they are: with whom they would end
    supervisor     the executors of one owner kind: what runs against what was ordered

qGPU slots and pods of other nodes (`egpu.apps.agent`) and leases (`egpu.apps.serve`) use them alike, each with an owner
of its own in the record. NOT here: who may have an executor, and how programs reach it (`egpu.adapters.pool`).
"""
