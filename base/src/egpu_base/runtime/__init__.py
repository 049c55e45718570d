"""asyncio without Kubernetes: what every long-running process of ours is made of.

    logs          one JSON object per line, on stderr
    log_limits    so many lines of one kind, and how many were dropped
    workqueue     keys to work on: none twice, failures are retried later
    reconcile     the loop that works on them
    latest        slow answers to the latest question
    coalescing    one question for all that ask the same at once
    worker_process  a slow call in its own process
    keeping       long-lived objects, and the garbage collector
    looking       a thread that looks at something again and again
    beats         tasks that look now and then, at the same moments
    clock         time of day that goes on evenly, whatever it is set to
    foreground    a command's work, until it ends or a signal ends it
    restarts      work beside these that is started again when it ends
    supervisor    the named tasks of one process: the first failure ends them all
    endless       groups of tasks inside these, of which none may end

NOT a client or server of anything.
"""
