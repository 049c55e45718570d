"""The Kubernetes API: a typed client, a reflector that survives lost history, and leader election.

    client        one method per verb, in our own errors
    connection    from a kubeconfig or a service account to HTTP
    exchanges     a request and its whole answer
    transport     HTTP/1.1 to one server
    paths         the URL of each kind
    lists         pages of lists and lines of watches
    failures      the API server's errors as ours
    reflector     a local copy of one kind, kept true by list and watch
    store         the objects of such a copy, whole or packed
    caches        the reflectors of one process
    index         objects of such a copy by something that they say
    followed      the core's scheduler cache, and the view of it, kept by such copies
    election      one leader at a time, by a Lease object
    job_mix       where an extender keeps the mix that its prices follow
    reviews       who asks us, and what he may, by the API server's word
    events        what `kubectl describe` shows of what happened

This is NOT a general client library: it knows the kinds of `egpu.api` and no others.
"""

from egpu.adapters.kubernetes.caches import Caches
from egpu.adapters.kubernetes.client import Client, WatchEvent
from egpu.adapters.kubernetes.election import LeaseElection
from egpu.adapters.kubernetes.reflector import Change, Reflector

__all__ = ["Caches", "Change", "Client", "LeaseElection", "Reflector", "WatchEvent"]
