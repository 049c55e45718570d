"""Our data only: names, objects and wire shapes. No decisions (see `egpu.core`), no I/O. Kubernetes' own shapes are in
`egpu_base.api`.

names          groups, annotations, resource names, finalizers
vocabularies   the names of each technology, and their units
foreign        names of other projects: which are read, which are refused, and what to write instead
symptoms       headings of the page on troubleshooting, to which findings lead
text           which text of others is accepted, and how it is shown
mig            the possible and existing instances of a card in MIG mode
objects        ElasticGPU, ElasticGPUClaim, ElasticGPUClass
quotas         Kubernetes' resource quotas
webhooks       configurations of admission webhooks
allocation     the two annotations of ours on a pod
admission      AdmissionReview
crds           CustomResourceDefinitions, made from `objects`
"""
