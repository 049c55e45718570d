"""A plain scheduler for the embedded cluster: the default checks, then the same extender that kube-scheduler calls.

`predicates` decides, purely, whether a node can take a pod as far as Kubernetes itself is concerned; `usage` counts
what pods hold; `extender` speaks the extender's HTTP; `loop` takes one pod after the other. It is no replacement for
kube-scheduler: no preemption, no inter-pod affinity, no topology spread (a pod that asks for those is told so).
"""
