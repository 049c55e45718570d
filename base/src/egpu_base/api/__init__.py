"""Data only: Kubernetes' objects as we read and write them. No decisions, no I/O.

objects        metadata, references, conditions: the part that all kinds share
kubernetes     the part of Kubernetes' own kinds that we read or write
devices        devices, claims and classes of dynamic resource allocation
disruption     PodDisruptionBudgets
resources      the resources that a pod requests, as Kubernetes counts them
quantities     numbers as people and API servers write them
wire           names and times in JSON, and the base of every object
extender       kube-scheduler's extender protocol
"""
