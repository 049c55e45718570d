"""Pods that are placed all or none.

membership  who belongs to which gang, read from pods
placing     where the members of a gang fit at once
"""
