"""Whole workloads, replayed on arrays: what a policy would have done. Pure: the caller brings seeds and a clock.

workload   published_arrivals, churn   what comes when, from a trace and a seed
replay     run                         offers it to a policy and keeps the account
whatif     add, remove, change         other clusters than the one of the trace
defrag     propose                     the fewest moves that let a demand in
raising    raise_share                 the moves that make more of the cluster usable
moving     Movers                      a live cluster's pods that may be moved, and whether its ledger agrees
export     machines_of, trace_of       a cluster as a trace
summary    means, intervals, pairs     what many runs say together
"""
