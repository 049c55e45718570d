"""The Kubernetes API: a typed client, a reflector that survives lost history, and leader election.

    client        one method per verb, in our own errors
    connection    from a kubeconfig or a service account to HTTP
    exchanges     a request and its whole answer
    transport     HTTP/1.1 to one server
    paths         the URL of each kind
    lists         pages of lists and lines of watches
    failures      the API server's errors as ours
    reflector     a local copy of one kind, kept current by list and watch
    store         the objects of such a copy, whole or packed
    caches        the reflectors of one process
    index         objects of such a copy by a value in them
    election      one leader at a time, by a Lease object
    following     the same for a process that works for a leader of another election
    label_selectors  text to a predicate on labels
    reviews       identity and rights of our callers, by the API server
    events        events, as `kubectl describe` shows them

This is NOT a general client library: it knows kinds that are written as `egpu_base.api.objects.Object` and no others.
"""

from egpu_base.kubernetes.caches import Caches
from egpu_base.kubernetes.client import Client, WatchEvent
from egpu_base.kubernetes.election import LeaseElection
from egpu_base.kubernetes.following import FollowingElection
from egpu_base.kubernetes.reflector import Change, Reflector

__all__ = ["Caches", "Change", "Client", "FollowingElection", "LeaseElection", "Reflector", "WatchEvent"]
