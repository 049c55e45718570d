"""Make an HTTP client from a kubeconfig or a pod's service account. lightkube reads the files and authenticates."""

import ipaddress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2
import yaml
from lightkube import KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from egpu_base.errors import InvalidInput
from egpu_base.kubernetes.transport import Transport

# Watches and requests together. Each request beyond would begin with a handshake, which costs both sides more than most
# requests; so requests wait for an existing connection.
MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_SECONDS = 10.0
# Shorter than any server's own limit (uvicorn: 5 s), so that no request uses a connection that is being closed.
KEEPALIVE_SECONDS = 3.0


class Connection(NamedTuple):
    """An HTTP client for a cluster, the context's namespace, and the client's transport where it is ours."""

    http: httpx2.AsyncClient
    namespace: str
    transport: Transport | None


def connect(kubeconfig: Path | str | None = None, *, context: str | None = None) -> Connection:
    """Prepare a client; make no connection yet.

    Without a file: the pod's service account if there is one, else $KUBECONFIG, else ~/.kube/config.

    Raises:
        InvalidInput: no such file or context, or it is unreadable.
    """
    try:
        files = KubeConfig.from_env() if kubeconfig is None else KubeConfig.from_file(kubeconfig)
        config = files.get(context)
        assert config is not None, "without a default, lightkube raises instead"
        user = config.user or User()
        server = config.cluster.server
        tls = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
        # A proxy never stands between us and this very machine; httpx2 knows how to use other proxies.
        proxied = not _is_loopback(server) and bool(getproxies())
        own = Transport(tls, at_most=MAX_CONNECTIONS, keepalive_seconds=KEEPALIVE_SECONDS)
        transport = None if proxied else own
        http = httpx2.AsyncClient(
            base_url=server,
            auth=user_auth(user),
            verify=tls,
            timeout=httpx2.Timeout(REQUEST_TIMEOUT_SECONDS),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_SECONDS),
            trust_env=proxied,
            headers={"User-Agent": "elastic-gpu"},
            transport=transport,
        )
    except (ConfigError, OSError, AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        source = kubeconfig or "service account, $KUBECONFIG or ~/.kube/config"
        raise InvalidInput("kubeconfig", f"cannot use {source}: {error}") from error
    return Connection(http, config.namespace, transport)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
