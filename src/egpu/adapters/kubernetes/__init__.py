"""The Kubernetes API: a typed client, a reflector that survives lost history, and leader election.

This is NOT a general client library: it knows the kinds of `egpu.api` and no others.
"""

from egpu.adapters.kubernetes.caches import Caches
from egpu.adapters.kubernetes.client import Client, WatchEvent
from egpu.adapters.kubernetes.election import LeaseElection
from egpu.adapters.kubernetes.reflector import Change, Reflector

__all__ = ["Caches", "Change", "Client", "LeaseElection", "Reflector", "WatchEvent"]
