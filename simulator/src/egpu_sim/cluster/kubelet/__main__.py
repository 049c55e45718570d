"""`python -m egpu_sim.cluster.kubelet`: one simulated node."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from egpu_base.errors import ElasticGPUError
from egpu_base.runtime import logs
from egpu_sim.cluster.kubelet import KubeletConfig, end_all, run
from egpu_sim.cluster.kubelet.config import Listening


def main() -> int:
    arguments = _parser().parse_args()
    logs.configure("kubelet", level=arguments.log_level)
    try:
        if arguments.end_all:
            asyncio.run(end_all(arguments.kubelet_dir))
            return 0
        if not arguments.kubeconfig or not arguments.node:
            _parser().error("--kubeconfig and --node are needed")
        config = KubeletConfig(
            node=arguments.node,
            kubeconfig=arguments.kubeconfig,
            kubelet_dir=arguments.kubelet_dir.absolute(),
            driver_dir=arguments.driver_dir.absolute() if arguments.driver_dir else None,
            cpu=arguments.cpu,
            memory=arguments.memory,
            pods=arguments.pods,
            node_ip=arguments.node_ip,
            labels=dict(pair.split("=", 1) for pair in arguments.label),
            backoff_seconds=arguments.backoff_seconds,
            heartbeat_seconds=arguments.heartbeat_seconds,
            seed=arguments.seed,
            cdi_directories=tuple(arguments.cdi_dir),
            images=arguments.images,
            listening=_listening(arguments),
        )
        asyncio.run(run(config))
    except ElasticGPUError as error:
        sys.stderr.write(f"kubelet: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _listening(arguments: argparse.Namespace) -> Listening | None:
    if not arguments.port:
        return None
    return Listening(arguments.port, arguments.tls_cert_file, arguments.tls_private_key_file, arguments.client_ca_file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m egpu_sim.cluster.kubelet", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--node", help="name of the node")
    parser.add_argument("--kubelet-dir", type=Path, required=True, help="sockets, checkpoint, runs and logs")
    parser.add_argument("--driver-dir", type=Path, help="the node's simulated driver directory")
    parser.add_argument("--cpu", default="8")
    parser.add_argument("--memory", default="32Gi")
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--node-ip", default="127.0.0.1")
    parser.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--backoff-seconds", type=float, default=1.0, help="first pause after a crash; then doubled")
    parser.add_argument("--heartbeat-seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="makes the random order of device ids repeatable")
    parser.add_argument("--cdi-dir", action="append", default=[], type=Path, help="where CDI devices are looked up")
    parser.add_argument("--images", type=Path, metavar="FILE", help="table of images that comes before the shipped one")
    parser.add_argument("--port", type=int, default=0, help="where an API server of another project asks for logs")
    for name in ("--tls-cert-file", "--tls-private-key-file", "--client-ca-file"):
        parser.add_argument(name, type=Path, help="of that port")
    parser.add_argument("--log-level", default="info", choices=logs.LEVELS)
    parser.add_argument("--end-all", action="store_true", help="only end the containers left under --kubelet-dir")
    return parser


if __name__ == "__main__":
    sys.exit(main())
