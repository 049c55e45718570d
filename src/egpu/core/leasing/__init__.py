"""The pool's leases: slices of cards of many servers, held by programs for as long as they renew. Pure.

    records    what is asked, said and kept: LeaseRequest, LeaseRecord, RunningLease, Report
    state      a lease, its part on each server, and a server, as the pool knows them; the states of a lease
    table      all leases, and with each what the ledger holds for it
    belief     what of a server's report is believed
    reports    what a server's report changes
    pool       the decisions: grant, resize, end, what time ends
    links      whose networks on which servers are linked
    tokens     the signed credential with which a program reaches a lease's executor

NOT here: connections and waiting (`egpu.apps.broker`), and running executors (`egpu.apps.serve`).
"""
