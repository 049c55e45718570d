"""The measured processes and their needs: certificates, a kubeconfig, free ports."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import yaml

from egpu_base.tls.certificates import issue
from egpu_sim.cluster.ports import ports

READY_SECONDS: Final = 300.0


@dataclass(frozen=True)
class Process:
    """A server on loopback; `monitoring_port` has its health and its metrics."""

    port: int
    pid: int
    monitoring_port: int = 0


def make_certificates(folder: Path) -> None:
    """Write certificates of a loopback server and a client, as the files that `Caller` and the servers read."""
    made = issue(["127.0.0.1"], now=datetime.now(UTC), client="kube-scheduler")
    files = {"ca.crt": made.ca_bundle, "tls.crt": made.certificate, "tls.key": made.key}
    files |= {"client.crt": made.client_certificate, "client.key": made.client_key}
    for name, text in files.items():
        (folder / name).write_bytes(text)


@contextlib.contextmanager
def said_its_port(*command: str) -> Generator[Process]:
    """Run a Python module, which writes its listening port, until the end of the block."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True)
    with _ended(process):
        assert process.stdout is not None
        yield Process(int(process.stdout.readline()), process.pid)


@contextlib.contextmanager
def component(name: str, folder: Path, api_port: int, *options: str) -> Generator[Process]:
    """Run `egpu NAME` against the API server on `api_port`: an extender, a webhook, a controller or a dashboard, which
    is ready when the block begins. `options` are added to the necessary ones."""
    with ports() as taken:
        port, health = taken.take(), taken.take()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(_kubeconfig(folder, api_port))
        tls = ["--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key")]
        listening = {
            "extender": ["--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}"],
            "webhook": ["--webhook-listen", f"127.0.0.1:{port}", "--listen", f"127.0.0.1:{health}"],
        }.get(name, ["--listen", f"127.0.0.1:{health}"])
        own = {"extender": [*tls, "--client-ca", str(folder / "ca.crt")], "webhook": tls}.get(name, [])
        command = [sys.executable, "-m", "egpu", name, "--kubeconfig", str(kubeconfig), *listening, *own]
        process = subprocess.Popen(
            [*command, *options, "--log-level", "info"], stderr=(folder / f"{name}.log").open("wb")
        )
        with _ended(process):
            _until_ready(name, health, process, folder / f"{name}.log")
            yield Process(port, process.pid, health)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> Generator[None]:
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _ready(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as asked:
            asked.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return asked.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _until_ready(name: str, health_port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _ready(health_port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the {name} is not ready: {log.read_text()[-500:]}")
        time.sleep(0.1)


def _kubeconfig(folder: Path, api_port: int) -> str:
    cluster = {"server": f"https://127.0.0.1:{api_port}", "certificate-authority": str(folder / "ca.crt")}
    user = {"client-certificate": str(folder / "client.crt"), "client-key": str(folder / "client.key")}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }
    )
