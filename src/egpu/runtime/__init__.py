"""asyncio without Kubernetes: what every long-running process of ours is made of.

    logs          one JSON object per line, on stderr
    log_limits    so many lines of one kind, and how many were dropped
    workqueue     keys to look at: none twice, failures come back later
    reconcile     the loop that looks at them
    latest        slow answers to the latest question
    together      a question that many ask at once
    elsewhere     a slow call in a process of its own
    keeping       what is read once and stays
    looking       a thread that looks at something again and again
    beats         tasks that look now and then, at the same moments
    clock         time of day that goes on evenly, whatever it is set to
    supervisor    the named tasks of one process: the first failure ends them all

NOT a client or server of anything.
"""
