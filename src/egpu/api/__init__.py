"""Data only: names, quantities, objects and wire shapes. No decisions (those are `egpu.core`), no I/O.

names          groups, annotations, resource names, finalizers
vocabularies   which names each technology reads, and in what unit
foreign        names of other projects that nobody serves, and what to write instead
text           what of others' text is taken in, and how it is shown
quantities     numbers as people and API servers write them
mig            what a card in MIG mode can be cut into, and is
objects        ElasticGPU, ElasticGPUClaim, ElasticGPUClass
kubernetes     the part of Kubernetes' own kinds that we read or write
quotas         Kubernetes' resource quotas
disruption     PodDisruptionBudgets
webhooks       configurations of admission webhooks
resources      what a pod asks of its node, as Kubernetes counts it
allocation     the two annotations of ours on a pod
wire           how names and times are written in JSON, and the base of every object
extender       kube-scheduler's extender protocol
admission      AdmissionReview
crds           CustomResourceDefinitions, made from `objects`
"""
