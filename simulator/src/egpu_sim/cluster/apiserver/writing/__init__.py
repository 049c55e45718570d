"""Writes: create, replace, delete, and the subresources that change an object.

writes      create, replace, patch, apply, bind
checks      the checks of every write
strict      unknown and doubled fields
deletion    delete, at once or when finalizers are done
disruption  disruption budgets, and the evictions that they allow
scale       replicas alone
resize      cpu and memory of a pod in place
"""
