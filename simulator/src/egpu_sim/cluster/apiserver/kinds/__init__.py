"""The served kinds, each with its rules and its schema.

resources    the served kinds: Kubernetes' own and those of definitions
builtin      Kubernetes' own kinds
pods         rules of pods
podspec      specs of pods, their own and those of templates
podclaims    claims of devices in them
podspreads   constraints in them that spread pods
workloads    the kinds whose controllers make pods
crd          CustomResourceDefinitions, and the kinds that they add
devices      the kinds of dynamic resource allocation
definitions  the rules of a CustomResourceDefinition
names        rules of names, labels and annotations
schema       prunes, defaults and validates an object by its schema
models       schemas of Kubernetes' own kinds
decoding     the errors of Go's decoder for built-in kinds
"""
