"""The dashboard of an embedded cluster, and a user who may look at everything and touch nothing."""

import asyncio
import contextlib
import time

import httpx2

from egpu.adapters.files import write_atomically
from egpu.embedded.cluster import DASHBOARD, VIEWER, Cluster
from egpu.embedded.processes import ChildSpec, python_module
from egpu.embedded.readiness import POLL_SECONDS, START_SECONDS
from egpu.errors import Unavailable

VIEWER_ROLE = "elastic-gpu-viewer"


async def start_dashboard(running: Cluster) -> str:
    """Its address, once it answers, which signs in whoever opens it: what follows `#` is a token of VIEWER. Raises
    Unavailable."""
    plane = running.plane
    token_file = running.state_dir / f"{DASHBOARD}.token"
    write_atomically(token_file, plane.tokens[DASHBOARD].encode(), mode=0o600)
    agents = [url for name, url in running.ready_urls.items() if name.startswith("agent-")]
    usage = [part for url in agents for part in ("--usage", url.replace("/readyz", "/metrics"))]
    async with running.client() as client:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": VIEWER_ROLE}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": VIEWER}
        binding = {"metadata": {"name": VIEWER}, "roleRef": reference, "subjects": [subject]}
        await client.raw("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=binding)
    port = running.ports.take()
    config = running.config
    command = python_module(
        "egpu", DASHBOARD, "--kubeconfig", str(plane.kubeconfigs[DASHBOARD]), "--listen", f"127.0.0.1:{port}",
        "--log-level", config.log_level,
        "--node-policy", config.node_policy, "--card-policy", config.card_policy,
        "--token-file", str(token_file), *usage,
    )  # fmt: skip
    await running.fleet.start([ChildSpec(DASHBOARD, command, running.state_dir / "logs" / f"{DASHBOARD}.log")])
    url = f"http://127.0.0.1:{port}"
    await _ready(running, f"{url}/readyz")
    return f"{url}/login#token={plane.tokens[VIEWER]}"


async def _ready(running: Cluster, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    async with httpx2.AsyncClient(trust_env=False, timeout=2.0) as http:
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                if (await http.get(url)).status_code == 200:
                    return
            if time.monotonic() > deadline:
                tail = running.fleet.log_tail(DASHBOARD)
                raise Unavailable(f"the dashboard did not start within {START_SECONDS:g} s; its log ends:\n{tail}")
            await asyncio.sleep(POLL_SECONDS)
