"""The dashboard of a simulated cluster, and a user with read-only rights."""

import time

from egpu.adapters.kubernetes.announced_usage import UsageSources, announce
from egpu.laptop.cluster import DASHBOARD, VIEWER, Cluster
from egpu_base.system.files import write_atomically
from egpu_sim.cluster.processes import ChildSpec
from egpu_sim.cluster.readiness import START_SECONDS, answered

VIEWER_ROLE = "elastic-gpu-viewer"


async def start_dashboard(running: Cluster) -> str:
    """Start the dashboard. Return its address, once it answers; the part after `#` is a token that signs in as VIEWER.
    Raises Unavailable."""
    plane = running.plane
    token_file = running.state_dir / f"{DASHBOARD}.token"
    write_atomically(token_file, plane.tokens[DASHBOARD].encode(), mode=0o600)
    agents = [url for name, url in running.ready_urls.items() if name.startswith("agent-")]
    sources = UsageSources(tuple(url.replace("/readyz", "/metrics") for url in agents), token_file)
    for file in filter(None, (running.kubeconfig, running.config.kubeconfig)):
        announce(file, sources)  # for `egpu top` and `egpu bill`
    usage = [part for url in sources.urls for part in ("--usage", url)]
    async with running.client() as client:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": VIEWER_ROLE}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": VIEWER}
        binding = {"metadata": {"name": VIEWER}, "roleRef": reference, "subjects": [subject]}
        await client.raw("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body=binding)
    port = running.ports.take()
    config = running.components.config
    command = (
        "egpu", DASHBOARD, "--kubeconfig", str(plane.kubeconfigs[DASHBOARD]), "--listen", f"127.0.0.1:{port}",
        "--log-level", config.log_level,
        "--node-policy", config.node_policy, "--card-policy", config.card_policy,
        "--token-file", str(token_file), *usage,
    )  # fmt: skip
    log_file = running.state_dir / "logs" / f"{DASHBOARD}.log"
    await running.fleet.start([ChildSpec(DASHBOARD, command, log_file, module=True)])
    url = f"http://127.0.0.1:{port}"
    await answered(running, {DASHBOARD: f"{url}/readyz"}, time.monotonic() + START_SECONDS)
    return f"{url}/login#token={plane.tokens[VIEWER]}"
