"""asyncio without Kubernetes. NOT a client or server of anything.

logs        structured logs: one JSON object per line
workqueue   keys to look at: no key twice, no key in two hands at once
reconcile   the reconcile loop
supervisor  runs the tasks of one process, and ends them together
latest      slow answers to the latest question
"""
