"""The pool's leases: slices of cards of many servers, held by programs for as long as they renew. Pure.

    records    the messages and stored records: LeaseRequest, LeaseRecord, RunningLease, Report
    state      a lease, its part on each server, and a server, as the pool knows them; the states of a lease
    table      all leases, and their holds in the ledger
    belief     which parts of a server's report are accepted
    reports    the changes by a server's report
    pool       the decisions: grant, resize, end, expiry
    moves      a lease at two places until one is final; why it is never two, and never none
    targets    the places that a lease can move to
    links      which networks on which servers are linked
    tokens     the signed credential with which a program reaches a lease's executor

NOT here: connections and waiting (`egpu.apps.broker`), and running executors (`egpu.apps.serve`).
"""
