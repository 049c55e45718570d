"""Pods that are placed all or none.

membership  who belongs to which gang, read from pods
alike       members that kube-scheduler would allow on the same nodes
placing     where the members of a gang fit at once
"""
