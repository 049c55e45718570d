"""The kinds of dynamic resource allocation (resource.k8s.io/v1), with the defaults and rules of Kubernetes 1.36.

table    the four kinds as resources
claims   claims and templates: requests, and what an allocation may be
slices   the devices that drivers publish
parts    rules that claims, classes and slices share
rights   rights to write parts of a claim's status

Features behind gates that 1.36 has off by default are absent: attributes with lists, taint rules, and devices that are
mapped to resources of nodes.
"""
