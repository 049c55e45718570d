"""A small Kubernetes API server in one process, for trying, developing and testing. Not Kubernetes: it keeps everything
in memory. docs/internals/simulated-cluster.md lists its other limits.

    serve      on loopback, from the start of one run to the end of the last
    instance   one run, everything put together
    calls      one request: a user, a verb and an object
    status     errors as Status objects
    http       paths, content types, and the documents that describe the API
    access     authentication and authorization
    admission  webhooks, policies, priority classes and quotas
    writing    create, replace, delete, evict, scale, resize
    patching   PATCH, in its four formats
    reading    get, list, watch, and the tables that kubectl prints
    nodes      requests that kubelets answer: logs, exec, port-forward, usage
    kinds      the served kinds, each with its rules and its schema
    storage    the objects that are stored, and the log of their changes
"""

from egpu_sim.cluster.apiserver.access.identities import ADMIN, node_user, service_account
from egpu_sim.cluster.apiserver.calls import User
from egpu_sim.cluster.apiserver.serve import Config, ServerHandle, serve

__all__ = ["ADMIN", "Config", "ServerHandle", "User", "node_user", "serve", "service_account"]
