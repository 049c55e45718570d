"""The processes of an installation, by `egpu.apps`: `egpu webhook`, `extender`, `agent`, `shim`, `controller`."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer
import uvloop

from egpu.api.vocabularies import OPTIONAL
from egpu.cli import collect_as_usual
from egpu.cli.output import EXIT_FAILED, EXIT_USAGE, fail
from egpu.cli.park import ParkingMemory
from egpu_base.errors import ElasticGPUError, InvalidInput

C = TypeVar("C")

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="Kubeconfig file. Default: the pod's service account, $KUBECONFIG or ~/.kube/config."
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(metavar="LEVEL", help="Log level (logs go to stderr): debug, info, warning or error."),
]
LogFormat = Annotated[
    Literal["auto", "json", "text"],
    typer.Option(metavar="FORMAT", help="Log format: json or text. auto: text on a terminal, otherwise json."),
]
Namespace = Annotated[str, typer.Option(help="Namespace of this installation's Leases and Secrets.")]
Listen = Annotated[str, typer.Option(help="HOST:PORT for /healthz, /readyz and /metrics. Port 0: any free port.")]
LeaderElect = Annotated[bool, typer.Option("--leader-elect", help="Only the elected replica works. Others wait.")]

Cgroup = Annotated[
    str,
    typer.Option(
        help="Delegated cgroup v2 directory of executors. none: no cgroups. Default: this command's own, if delegated."
    ),
]
ExecutorMemory = Annotated[
    int, typer.Option(min=0, metavar="MIB", help="Host memory per executor. 0: 2048 MiB plus the slice's GPU memory.")
]
ExecutorCpus = Annotated[float, typer.Option(min=0, help="CPUs per executor. 0: in proportion to the slice's compute.")]
ExecutorUsers = Annotated[
    str,
    typer.Option(metavar="FIRST-LAST", help="User ids of executors, if this command is root. none: its own user id."),
]
OF_EXECUTORS = "--cgroup, --executor-…, --image-cache, --library-path"
LibraryPath = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR",
        help="Folder of NVIDIA's libraries (cuBLAS, cuDNN, …) for executors. Repeatable. Executors also search the "
        "wheels of this Python, and /usr/local/cuda.",
    ),
]
ImageCache = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="MIB", help="MiB of disk for GPU code, 256 per client or namespace. 0: none. Default: 2048."
    ),
]

HardwareMetrics = Annotated[
    bool,
    typer.Option(
        "--hardware-metrics",
        help="Publish temperature, power, load and memory of each card, for nodes without the DCGM exporter.",
    ),
]

HasShim = Annotated[
    bool,
    typer.Option("--shim", help="Use the `egpu shim` of this node. It answers kubelet and starts the executors."),
]

PoolPki = Annotated[
    Path | None,
    typer.Option(help="Join the pool with ca.crt, server-NODE.crt and server-NODE.key from this directory."),
]
PoolAdvertise = Annotated[str, typer.Option(help="HOST:PORT that other agents connect to. Default: --pool-listen.")]
LinkMbps = Annotated[int, typer.Option(min=0, help="Network speed in Mbit/s. 0: as the Linux kernel reports.")]

Vocabularies = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help=f"Resource names to turn on (vocabularies), joined by commas: {', '.join(OPTIONAL)}."
    ),
]

Cdi = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(help="Give containers their slices as CDI devices. auto: if kubelet and runtime support CDI."),
]
CdiDir = Annotated[
    list[Path] | None,
    typer.Option(
        help="Folder of CDI files. Repeatable: the agent writes to the last. Default: /etc/cdi, /var/run/cdi."
    ),
]
CgroupRoot = Annotated[Path, typer.Option(help="Directory of kubelet's control groups.")]
MpsShm = Annotated[
    int,
    typer.Option(
        min=0,
        help="MiB of /dev/shm for a card's MPS daemon and its programs. kubelet and shim must see the mount. 0: none.",
    ),
]
SlotsPerCard = Annotated[int, typer.Option("--slots-per-card", min=1, help="Slots per card, one per GPU container.")]
SlotsStateDir = Annotated[Path, typer.Option(help="Directory for the files of running slices.")]
MountUsage = Annotated[
    bool,
    typer.Option(
        "--mount-usage",
        help="Mount a usage file of fixed size into each container. kubelet must see the mount "
        "(mountPropagation: Bidirectional).",
    ),
]

DaemonSet = Annotated[
    str,
    typer.Option(metavar="NAMESPACE/NAME", help="DaemonSet of this agent. If it is gone, the agent offers no cards."),
]

NAMESPACE = "elastic-gpu-system"


def webhook(
    kubeconfig: Kubeconfig = None,
    listen: Listen = "127.0.0.1:8081",
    webhook_listen: Annotated[str, typer.Option(help="HOST:PORT for admission requests (HTTPS).")] = "127.0.0.1:9443",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate file. Default: use --tls-secret.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key file of --tls-cert.")] = None,
    tls_secret: Annotated[str, typer.Option(help="Secret written by the controller.")] = "elastic-gpu-webhook-tls",  # noqa: S107
    namespace: Namespace = NAMESPACE,
    scheduler_user: Annotated[
        list[str], typer.Option(help="User allowed to bind GPU pods. Default: the extender's service account.")
    ] = [],
    vocabularies: Vocabularies = "",
    scheduler_name: Annotated[
        str,
        typer.Option(metavar="NAME", help="Scheduler to write into GPU pods that name none. Default: write nothing."),
    ] = "",
    other_schedulers: Annotated[
        str, typer.Option(metavar="NAMES", help="Further schedulers that ask the extender, joined by commas.")
    ] = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run the admission webhook. It converts GPU requests of every kind to one form, and rejects invalid requests."""
    from egpu.apps.webhook import WebhookConfig, run
    from egpu.core.schedulers import Schedulers

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
        schedulers=Schedulers(scheduler_name, listed(other_schedulers)),
    )
    run_component("webhook", run, config, (log_level, log_format), answers=True)


def extender(
    kubeconfig: Kubeconfig = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT for kube-scheduler (TLS).")] = "127.0.0.1:3456",
    health_listen: Annotated[
        str, typer.Option(help="HOST:PORT for health, metrics and explanations.")
    ] = "127.0.0.1:8084",
    node_policy: Annotated[str, typer.Option(help="Policy that ranks nodes: price, binpack, spread, …")] = "default",
    card_policy: Annotated[str, typer.Option(help="Policy that ranks the cards of a node.")] = "default",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate file to serve HTTPS with.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key file of --tls-cert.")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Accept only clients with a certificate of this CA.")] = None,
    leader_elect: LeaderElect = False,
    namespace: Namespace = NAMESPACE,
    lease: Annotated[str, typer.Option(help="Lease object. Only its holder places pods.")] = "elastic-gpu-extender",
    follow: Annotated[
        str, typer.Option(metavar="LEASE", help="Lead while kube-scheduler on this host holds this Lease.")
    ] = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run the scheduler extender. It sees all cards of all nodes and is the only writer of placements."""
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
        follow=follow,
    )
    run_component("extender", run, config, (log_level, log_format), answers=True)


def agent(
    node: Annotated[str, typer.Option(help="Name of this node.", envvar="NODE_NAME")],
    kubeconfig: Kubeconfig = None,
    kubelet_dir: Annotated[Path, typer.Option(help="Directory of kubelet.")] = Path("/var/lib/kubelet"),
    state_dir: SlotsStateDir = Path("/var/lib/elasticgpu"),
    device_root: Annotated[Path, typer.Option(help="Directory of the device files nvidia0, …")] = Path("/dev"),
    nvml_library: Annotated[Path | None, typer.Option(help="NVML library file. Default: the system's library.")] = None,
    cgroup_root: CgroupRoot = Path("/sys/fs/cgroup"),
    node_ip: Annotated[str, typer.Option(help="Address of this node, for metrics.", envvar="NODE_IP")] = "",
    listen: Listen = "127.0.0.1:0",
    slots_per_card: SlotsPerCard = 48,
    pool_pki: PoolPki = None,
    pool_listen: Annotated[str, typer.Option(help="HOST:PORT to listen on, for other agents.")] = "127.0.0.1:0",
    pool_advertise: PoolAdvertise = "",
    pool_link_mbps: LinkMbps = 0,
    vocabularies: Vocabularies = "",
    cgroup: Cgroup = "",
    executor_memory: ExecutorMemory = 0,
    executor_cpus: ExecutorCpus = 0.0,
    executor_users: ExecutorUsers = "",
    image_cache: ImageCache = None,
    library_path: LibraryPath = None,
    mount_usage: MountUsage = False,
    cdi: Cdi = "auto",
    cdi_dir: CdiDir = None,
    shim: HasShim = False,
    hardware_metrics: HardwareMetrics = False,
    mps_shm_mib: MpsShm = 0,
    parking_memory: ParkingMemory = None,
    daemon_set: DaemonSet = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run the agent of a GPU node. It publishes the node's cards and prepares the slices of its containers."""
    from egpu.adapters.executors.confinement import ConfinementConfig
    from egpu.adapters.local import election
    from egpu.adapters.local.run import default_root
    from egpu.apps.agent import AgentConfig, run
    from egpu_base.kubelet.cdi import DIRECTORIES

    confinement = ConfinementConfig(cgroup=cgroup, memory_mib=executor_memory, cpus=executor_cpus, users=executor_users)
    if shim and (confinement != ConfinementConfig() or image_cache is not None or library_path):
        raise InvalidInput("shim", f"the shim starts executors: give {OF_EXECUTORS} to `shim`")
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
        library_path=tuple(library_path or ()),
        mount_usage=mount_usage,
        cdi=cdi,
        cdi_directories=tuple(cdi_dir or DIRECTORIES),
        sharing_dir=default_root() / election.DIRECTORY if nvml_library is None else None,
        shim=shim,
        hardware_metrics=hardware_metrics,
        mps_shm_mib=mps_shm_mib,
        parking_memory_mib=parking_memory,
        daemon_set=daemon_set,
    )
    run_component("agent", run, config, (log_level, log_format))


def shim(
    kubelet_dir: Annotated[Path, typer.Option(help="Directory of kubelet.")] = Path("/var/lib/kubelet"),
    state_dir: Annotated[Path, typer.Option(help="State directory of the agent.")] = Path("/var/lib/elasticgpu"),
    driver_dir: Annotated[
        Path | None, typer.Option(help="Directory of the executors' CUDA driver. Default: the system's.")
    ] = None,
    library_path: LibraryPath = None,
    cgroup: Cgroup = "",
    executor_memory: ExecutorMemory = 0,
    executor_cpus: ExecutorCpus = 0.0,
    executor_users: ExecutorUsers = "",
    image_cache: ImageCache = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run the shim of a GPU node. It answers kubelet and keeps executors running while the agent is upgraded."""
    from egpu.adapters.executors.confinement import ConfinementConfig
    from egpu.apps.shim import ShimConfig, run

    config = ShimConfig(
        kubelet_dir=kubelet_dir,
        state_dir=state_dir,
        driver_dir=driver_dir,
        library_path=tuple(library_path or ()),
        confinement=ConfinementConfig(
            cgroup=cgroup, memory_mib=executor_memory, cpus=executor_cpus, users=executor_users
        ),
        image_cache_mib=image_cache,
    )
    run_component("shim", run, config, (log_level, log_format))


def controller(
    kubeconfig: Kubeconfig = None,
    listen: Listen = "127.0.0.1:8082",
    namespace: Namespace = NAMESPACE,
    webhook_service: Annotated[
        str | None, typer.Option(help="Service by which the API server reaches the webhook: NAME[:PORT].")
    ] = None,
    tls_secret: Annotated[str, typer.Option(help="Secret for the webhook's certificate.")] = "elastic-gpu-webhook-tls",  # noqa: S107
    extender_tls_secret: Annotated[
        str | None, typer.Option(help="Secret for the certificates of extender and kube-scheduler.")
    ] = None,
    team_label: Annotated[
        str,
        typer.Option(help="Label of pods and claims. Its value is the label `team` of metrics of lost GPU time."),
    ] = "team",
    leader_elect: LeaderElect = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run the controller. It binds claims, reclaims slices, renews webhook certificates and removes leaked objects."""
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
    run_component("controller", run, config, (log_level, log_format), answers=True)


def listed(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def optional_vocabularies(text: str) -> tuple[str, ...]:
    """Return the names in the comma-separated `text`. Exits with a usage error for an unknown name."""
    wanted = listed(text)
    if unknown := [name for name in wanted if name not in OPTIONAL]:
        fail(f"--vocabularies: {unknown[0]!r} is unknown. Use one or more of {', '.join(OPTIONAL)}", code=EXIT_USAGE)
    return wanted


def run_component(
    name: str, run: Callable[[C], Awaitable[None]], config: C, log: tuple[str, str], *, answers: bool = False
) -> None:
    """Run one process of an installation to its end. An ElasticGPUError becomes one line and an exit code. `log`: level
    and format. `answers`: pods wait for its answers, or it watches all pods; it then runs on uvloop, which gRPC of
    agents does not support."""
    from egpu_base.runtime import logs

    level, form = log
    logs.configure(name, level=level, form=form)
    collect_as_usual()

    async def work() -> None:
        await run(config)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if answers else None) as runner:
            runner.run(work())
    except InvalidInput as error:
        fail(str(error), code=EXIT_USAGE)
    except ElasticGPUError as error:
        fail(str(error), code=EXIT_FAILED)
