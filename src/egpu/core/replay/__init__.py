"""Replays of whole workloads on arrays: what a policy would have done. Pure: the caller passes seeds and a clock.

workload   published_arrivals, churn   arrivals and departures, from a trace and a seed
run        run                         offers them to a policy and records the outcome
whatif     add, remove, change         other clusters than the one of the trace
parking    sharing, contended          pods that share the room of their cards
export     machines_of, trace_of       a cluster as a trace
summary    means, intervals, pairs     results of many runs together
"""
