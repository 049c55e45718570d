"""A small Kubernetes API server in one process, for trying, developing and testing.

It speaks the protocol well enough for unmodified kubectl and client libraries: discovery, OpenAPI, list and watch,
patches, admission webhooks, custom resources. This is NOT Kubernetes: everything is kept in memory, whoever has a
token may do everything (no RBAC), and what it does not have it refuses by name. See docs/apiserver.md.

Reading order: `store` (versioned objects and the log of changes) → `resources`, `builtin`, `crd` (what can be stored)
→ `writes`, `deletion`, `reads`, `watch` (what can be done) → `handlers`, `app` (HTTP) → `serve` (put together).
"""

from egpu.embedded.apiserver.access import ADMIN, node_user, service_account
from egpu.embedded.apiserver.calls import User
from egpu.embedded.apiserver.serve import Config, ServerHandle, serve

__all__ = ["ADMIN", "Config", "ServerHandle", "User", "node_user", "serve", "service_account"]
