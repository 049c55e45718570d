"""The processes of an installation: `egpu webhook`, `extender`, `agent`, `shim`, `controller`; what they do is in
`egpu.apps`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
import uvloop

from egpu.api.vocabularies import OPTIONAL
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, fail
from egpu.errors import ElasticGPUError, InvalidInput

C = TypeVar("C")

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="Kubeconfig file. Default: the pod's service account, $KUBECONFIG or ~/.kube/config."
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(metavar="LEVEL", help="How much is logged (to stderr): debug, info, warning or error."),
]
Namespace = Annotated[str, typer.Option(help="Namespace of the leases and secrets of this installation.")]
Listen = Annotated[str, typer.Option(help="HOST:PORT for /healthz, /readyz and /metrics. Port 0 takes a free one.")]
LeaderElect = Annotated[bool, typer.Option("--leader-elect", help="Wait for the lease: several replicas, one works.")]

Cgroup = Annotated[
    str,
    typer.Option(
        help="Delegated cgroup v2 directory for executors' groups. Default: the daemon's own, if it may. none: none.",
    ),
]
ExecutorMemory = Annotated[
    int, typer.Option(min=0, metavar="MIB", help="Host memory per lease. 0: 2048 and its GPU memory.")
]
ExecutorCpus = Annotated[float, typer.Option(min=0, help="Processors per lease. 0: shared by the leases' compute.")]
ExecutorUsers = Annotated[
    str,
    typer.Option(metavar="FIRST-LAST", help="Users of executors, one each, where the daemon is root; none: its own."),
]
ImageCache = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="MIB", help="Disk for modules' images, 256 for each caller. 0: none are kept. Default: 2048."
    ),
]

HardwareMetrics = Annotated[
    bool,
    typer.Option(
        "--hardware-metrics",
        help="Tell of temperature, power, load and memory of each card, too. For nodes without DCGM's exporter.",
    ),
]

HasShim = Annotated[
    bool,
    typer.Option(
        "--shim", help="This node has an `egpu shim`: it answers kubelet and has the executors, as it is told."
    ),
]

Vocabularies = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help=f"Optional vocabularies to take, joined by commas: {', '.join(OPTIONAL)}. Default: none."
    ),
]

Cdi = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(help="Slots are CDI devices: where kubelet and runtime say that they take those, always or never."),
]
CdiDir = Annotated[
    list[Path] | None,
    typer.Option(help="Where CDI devices are; ours go into the last. Default: /etc/cdi and /var/run/cdi."),
]
CgroupRoot = Annotated[Path, typer.Option(help="Where kubelet's control groups are.")]
MpsShm = Annotated[
    Path | None,
    typer.Option(help="What the shim has as /dev/shm: programs of MPS slices get it, too. Default: none shares it."),
]
MountUsage = Annotated[
    bool,
    typer.Option(
        "--mount-usage",
        help="Mount each container's usage file, so that it cannot grow; kubelet has to see the mount "
        "(mountPropagation: Bidirectional).",
    ),
]

NAMESPACE = "elastic-gpu-system"


def webhook(
    kubeconfig: Kubeconfig = None,
    listen: Listen = "127.0.0.1:8081",
    webhook_listen: Annotated[str, typer.Option(help="HOST:PORT for admission requests, in HTTPS.")] = "127.0.0.1:9443",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate file. Default: the Secret.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key file.")] = None,
    tls_secret: Annotated[str, typer.Option(help="Secret that the controller keeps.")] = "elastic-gpu-webhook-tls",  # noqa: S107
    namespace: Namespace = NAMESPACE,
    scheduler_user: Annotated[
        list[str], typer.Option(help="User whose bindings give out cards. Default: the extender's service account.")
    ] = [],  # noqa: B006  typer wants a list, and does not change it
    vocabularies: Vocabularies = "",
    log_level: LogLevel = "info",
) -> None:
    """Admission: turns every way of asking for a GPU into one demand, and refuses what cannot be one."""
    from egpu.apps.webhook import WebhookConfig, run

    config = WebhookConfig(
        kubeconfig=kubeconfig,
        listen=listen,
        webhook_listen=webhook_listen,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_secret=tls_secret,
        namespace=namespace,
        scheduler_user=tuple(scheduler_user),
        vocabularies=optional_vocabularies(vocabularies),
    )
    run_component("webhook", run, config, log_level, answers=True)


def extender(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT for kube-scheduler, in TLS.")] = "127.0.0.1:3456",
    health_listen: Annotated[
        str, typer.Option(help="HOST:PORT for health, metrics and explanations.")
    ] = "127.0.0.1:8084",
    node_policy: Annotated[str, typer.Option(help="How nodes are preferred: price, binpack, spread, …")] = "default",
    card_policy: Annotated[str, typer.Option(help="How cards of a node are preferred.")] = "default",
    tls_cert: Annotated[Path | None, typer.Option(help="Serve HTTPS with this certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key.")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Let in only clients with a certificate of this CA.")] = None,
    leader_elect: LeaderElect = False,
    namespace: Namespace = NAMESPACE,
    lease: Annotated[str, typer.Option(help="Lease that lets one extender write at a time.")] = "elastic-gpu-extender",
    log_level: LogLevel = "info",
) -> None:
    """Scheduling: sees every card of every node, and is the only writer of placements."""
    from egpu.apps.extender import ExtenderConfig, run

    config = ExtenderConfig(
        kubeconfig=kubeconfig,
        listen=listen,
        health_listen=health_listen,
        node_policy=node_policy,
        card_policy=card_policy,
        tls_cert=tls_cert,
        tls_key=tls_key,
        client_ca=client_ca,
        leader_elect=leader_elect,
        namespace=namespace,
        lease=lease,
    )
    run_component("extender", run, config, log_level, answers=True)


def agent(
    node: Annotated[str, typer.Option(help="Name of this node.", envvar="NODE_NAME")],
    kubeconfig: Kubeconfig = None,
    kubelet_dir: Annotated[Path, typer.Option(help="kubelet's directory.")] = Path("/var/lib/kubelet"),
    state_dir: Annotated[Path, typer.Option(help="Where containers' slots are prepared.")] = Path(
        "/var/lib/elasticgpu"
    ),
    device_root: Annotated[Path, typer.Option(help="Where nvidia0, nvidia1, … are.")] = Path("/dev"),
    nvml_library: Annotated[Path | None, typer.Option(help="NVML to use. Default: the system's.")] = None,
    cgroup_root: CgroupRoot = Path("/sys/fs/cgroup"),
    node_ip: Annotated[str, typer.Option(help="Address of this node, for metrics.", envvar="NODE_IP")] = "",
    listen: Listen = "127.0.0.1:0",
    slots_per_card: Annotated[int, typer.Option("--tokens-per-card", min=1, help="Slots per card.")] = 48,
    pool_pki: Annotated[
        Path | None,
        typer.Option(help="Take part in the pool, with ca.crt, server-NODE.crt and server-NODE.key of this directory."),
    ] = None,
    pool_listen: Annotated[str, typer.Option(help="HOST:PORT for agents of other nodes.")] = "127.0.0.1:0",
    pool_advertise: Annotated[str, typer.Option(help="How they reach it. Default: where it listens.")] = "",
    pool_link_mbps: Annotated[int, typer.Option(min=0, help="Speed of the network. 0: what the kernel says.")] = 0,
    vocabularies: Vocabularies = "",
    cgroup: Cgroup = "",
    executor_memory: ExecutorMemory = 0,
    executor_cpus: ExecutorCpus = 0.0,
    executor_users: ExecutorUsers = "",
    image_cache: ImageCache = None,
    mount_usage: MountUsage = False,
    cdi: Cdi = "auto",
    cdi_dir: CdiDir = None,
    shim: HasShim = False,
    hardware_metrics: HardwareMetrics = False,
    mps_shm: MpsShm = None,
    log_level: LogLevel = "info",
) -> None:
    """On each GPU node: publishes its cards, and prepares for each container what it was given."""
    from egpu.adapters.cdi import DIRECTORIES
    from egpu.adapters.executors.confinement import ConfinementConfig
    from egpu.adapters.local import election
    from egpu.adapters.local.run import default_root
    from egpu.apps.agent import AgentConfig, run

    confinement = ConfinementConfig(cgroup=cgroup, memory_mib=executor_memory, cpus=executor_cpus, users=executor_users)
    if shim and (confinement != ConfinementConfig() or image_cache is not None):
        raise InvalidInput("shim", "executors are the shim's: give --cgroup, --executor-…, --image-cache to `shim`")
    config = AgentConfig(
        node=node,
        kubeconfig=kubeconfig,
        kubelet_dir=kubelet_dir,
        state_dir=state_dir,
        device_root=device_root,
        nvml_library=nvml_library,
        cgroup_root=cgroup_root,
        node_ip=node_ip,
        listen=listen,
        slots_per_card=slots_per_card,
        pool_pki=pool_pki,
        pool_listen=pool_listen,
        pool_advertise=pool_advertise,
        pool_link_mbps=pool_link_mbps,
        vocabularies=optional_vocabularies(vocabularies),
        confinement=confinement,
        image_cache_mib=image_cache,
        mount_usage=mount_usage,
        cdi=cdi,
        cdi_directories=tuple(cdi_dir or DIRECTORIES),
        sharing_dir=default_root() / election.DIRECTORY if nvml_library is None else None,
        shim=shim,
        hardware_metrics=hardware_metrics,
        mps_shm=mps_shm,
    )
    run_component("agent", run, config, log_level)


def shim(
    kubelet_dir: Annotated[Path, typer.Option(help="kubelet's directory.")] = Path("/var/lib/kubelet"),
    state_dir: Annotated[Path, typer.Option(help="The agent's.")] = Path("/var/lib/elasticgpu"),
    driver_dir: Annotated[
        Path | None, typer.Option(help="A simulated machine's driver. Default: the system's.")
    ] = None,
    cgroup: Cgroup = "",
    executor_memory: ExecutorMemory = 0,
    executor_cpus: ExecutorCpus = 0.0,
    executor_users: ExecutorUsers = "",
    image_cache: ImageCache = None,
    log_level: LogLevel = "info",
) -> None:
    """On each GPU node, beside the agent: answers kubelet and keeps executors running while the agent is upgraded."""
    from egpu.adapters.executors.confinement import ConfinementConfig
    from egpu.apps.shim import ShimConfig, run

    config = ShimConfig(
        kubelet_dir=kubelet_dir,
        state_dir=state_dir,
        driver_dir=driver_dir,
        confinement=ConfinementConfig(
            cgroup=cgroup, memory_mib=executor_memory, cpus=executor_cpus, users=executor_users
        ),
        image_cache_mib=image_cache,
    )
    run_component("shim", run, config, log_level)


def controller(
    kubeconfig: Kubeconfig = None,
    listen: Listen = "127.0.0.1:8082",
    namespace: Namespace = NAMESPACE,
    webhook_service: Annotated[
        str | None, typer.Option(help="Where the API server finds the webhook: NAME[:PORT].")
    ] = None,
    tls_secret: Annotated[str, typer.Option(help="Secret for the webhook's certificate.")] = "elastic-gpu-webhook-tls",  # noqa: S107
    extender_tls_secret: Annotated[
        str | None, typer.Option(help="Secret for the certificates of extender and kube-scheduler.")
    ] = None,
    team_label: Annotated[
        str, typer.Option(help="Label of pods and claims by which metrics tell the bill, beside the namespace.")
    ] = "team",
    leader_elect: LeaderElect = False,
    log_level: LogLevel = "info",
) -> None:
    """Claims, slices, reclaim, webhook certificates, sweeping of leaks."""
    from egpu.apps.controller import ControllerConfig, run

    config = ControllerConfig(
        kubeconfig=kubeconfig,
        listen=listen,
        namespace=namespace,
        webhook_service=webhook_service,
        tls_secret=tls_secret,
        extender_tls_secret=extender_tls_secret,
        leader_elect=leader_elect,
        team_label=team_label,
    )
    run_component("controller", run, config, log_level, answers=True)


def optional_vocabularies(text: str) -> tuple[str, ...]:
    """The names in `text`, joined by commas. Exits with a usage error for one that there is not."""
    wanted = tuple(filter(None, (name.strip() for name in text.split(","))))
    if unknown := [name for name in wanted if name not in OPTIONAL]:
        fail(f"vocabularies: {unknown[0]!r} is not one of {', '.join(OPTIONAL)}", code=EXIT_USAGE)
    return wanted


def run_component(
    name: str, run: Callable[[C], Awaitable[None]], config: C, log_level: str, *, answers: bool = False
) -> None:
    """Run one process of an installation to its end; our errors become one line and an exit code. `answers`: pods wait
    for what it says, or it hears of each of them, so its event loop is the one in C (which gRPC, for agents, does not
    know)."""
    from egpu.runtime import logs

    logs.configure(name, level=log_level)

    async def work() -> None:
        await run(config)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if answers else None) as runner:
            runner.run(work())
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_FAILED)
