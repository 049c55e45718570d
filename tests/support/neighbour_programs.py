"""Controllers of other projects, from a directory of programs that is not ours:

    EGPU_NEIGHBOURS/NAME/manager         the program, or a script that first makes what its image has
                        /version         the version, as its project writes it
                        /crds/*.yaml     the definitions of its kinds
                        /webhooks.yaml   its admission webhooks, if it has any
                        /examples/       manifests of its documentation
    EGPU_NEIGHBOURS/charts/NAME          an unpacked Helm chart

A controller gets its certificate, its port and a configuration from us, and an administrator's rights.
"""

import asyncio
import contextlib
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import pytest
import yaml

from egpu.laptop.cluster import Cluster
from egpu_base.kubernetes import Client
from egpu_base.tls.certificates import issue, store
from support.lost_answers import made, removed
from support.ports import free_port
from support.waiting import until

ENVIRONMENT: Final = "EGPU_NEIGHBOURS"
SECONDS: Final = 120
Json = dict[str, Any]


class Probe(NamedTuple):
    """Where a program says that it is ready. A program that cannot be told its port has a port of its own."""

    path: str
    port: int = 0


READYZ: Final = Probe("/readyz")


@dataclass(frozen=True)
class Neighbour:
    """A neighbour's folder, and the kind of its configuration. `settings` are added to the common ones. A program
    without a configuration gets `arguments`: in place of {health} its address for probes, of {probed} that address's
    port, of {port} its webhooks' port, of {pki} the folder of its certificate, and of {kubeconfig} the cluster's."""

    name: str
    api_version: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arguments: tuple[str, ...] = ()
    probe: Probe = READYZ

    @property
    def folder(self) -> Path:
        given = os.environ.get(ENVIRONMENT)
        if not given or not os.access(found := Path(given) / self.name / "manager", os.X_OK):
            pytest.skip(f"{ENVIRONMENT} has no program {self.name}/manager")
        return found.parent

    def example(self, name: str) -> list[Json]:
        """Read a manifest of the neighbour's documentation."""
        return _documents(self.folder / "examples" / name)

    @contextlib.asynccontextmanager
    async def running(self, cluster: Cluster, client: Client, directory: Path) -> AsyncGenerator[None]:
        """Install the neighbour, run its controller until the end, and remove all of it."""
        folder, port, probed, pki = self.folder, free_port(), self.probe.port or free_port(), directory / "pki"
        certificate = issue(["localhost", "127.0.0.1"], now=datetime.now(UTC))
        store(pki, certificate)
        definitions = [one for path in sorted((folder / "crds").glob("*.yaml")) for one in _documents(path)]
        webhooks = list(_webhooks(folder / "webhooks.yaml", self.name, port, certificate.ca_bundle))
        told = {"health": f"127.0.0.1:{probed}", "probed": probed, "port": port, "pki": pki}
        arguments = [one.format(**told, kubeconfig=cluster.plane.kubeconfig) for one in self.arguments]
        configuration = directory / "config.yaml"
        configuration.write_text(yaml.safe_dump(self._configuration(port, probed, pki)))
        try:
            for one in definitions:
                await made(client, _DEFINITIONS, one)
            for one in definitions:
                await until(lambda one=one: _established(client, one), seconds=SECONDS)
            environment = {"KUBECONFIG": str(cluster.plane.kubeconfig), "PATH": os.environ["PATH"]}
            log = directory / "manager.log"
            with log.open("wb") as output:
                program = await asyncio.create_subprocess_exec(
                    folder / "manager",
                    *(arguments or [f"--config={configuration}"]),
                    env=environment,
                    stdout=output,
                    stderr=output,
                )
                try:
                    url = f"http://127.0.0.1:{probed}{self.probe.path}"
                    await until(lambda: _ready(url, program), lambda: log.read_text()[-2000:], seconds=SECONDS)
                    assert program.returncode is None, log.read_text()[-2000:]
                    trust = ssl.create_default_context(cadata=certificate.ca_bundle.decode())
                    urls = [hook["clientConfig"]["url"] for one in webhooks for hook in one["webhooks"]]
                    for url in urls:
                        await until(lambda url=url: _served(url, trust), what=url, seconds=SECONDS)
                    for one in webhooks:
                        await made(client, f"{_ADMISSION}/{_PLURALS[one['kind']]}", one)
                    yield
                finally:
                    with contextlib.suppress(ProcessLookupError):  # it has ended
                        program.terminate()
                    await program.wait()
        finally:
            for one in webhooks:
                await removed(client, f"{_ADMISSION}/{_PLURALS[one['kind']]}/{one['metadata']['name']}")
            for one in definitions:
                await removed(client, f"{_DEFINITIONS}/{one['metadata']['name']}")

    def _configuration(self, port: int, probed: int, pki: Path) -> Json:
        return {
            "apiVersion": self.api_version,
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": port, "host": "127.0.0.1", "certDir": str(pki)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": f"127.0.0.1:{probed}"},
            **self.settings,
        }


def of_page(name: str) -> list[Json]:
    """Read the example of a page in docs/operate/with."""
    return _documents(Path(__file__).parents[2] / "examples" / "with" / f"{name}.yaml")


def chart(name: str) -> Path:
    """Return the folder of an unpacked Helm chart, EGPU_NEIGHBOURS/charts/NAME."""
    given = os.environ.get(ENVIRONMENT)
    if not given or not (found := Path(given) / "charts" / name / "Chart.yaml").is_file():
        pytest.skip(f"{ENVIRONMENT} has no chart charts/{name}")
    return found.parent


_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_PLURALS: Final = {
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}


def _documents(path: Path) -> list[Json]:
    """Read a file, which may have megabytes of definitions."""
    return [one for one in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader) if one]


def _webhooks(path: Path, name: str, port: int, authority: bytes) -> Iterator[Json]:
    """Read the webhooks, and let the API server call the program on this machine."""
    for one in _documents(path) if path.exists() else ():
        one["metadata"]["name"] = f"{name}-{one['metadata']['name']}"
        for webhook in one["webhooks"]:
            path_there = webhook["clientConfig"]["service"]["path"]
            url, bundle = f"https://127.0.0.1:{port}{path_there}", b64encode(authority).decode()
            webhook["clientConfig"] = {"url": url, "caBundle": bundle}
        yield one


async def _established(client: Client, definition: Json) -> bool:
    found: Any = await client.raw("GET", f"{_DEFINITIONS}/{definition['metadata']['name']}")
    conditions = (found.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


async def _ready(url: str, program: asyncio.subprocess.Process) -> bool:
    """Return whether the program is ready, or has ended."""
    if program.returncode is not None:
        return True
    async with httpx2.AsyncClient() as http:
        with contextlib.suppress(httpx2.HTTPError):
            return (await http.get(url)).status_code == 200
    return False


async def _served(url: str, trust: ssl.SSLContext) -> bool:
    """Return whether the program has this webhook. Some are ready before they have."""
    async with httpx2.AsyncClient(verify=trust) as http:
        with contextlib.suppress(httpx2.HTTPError):
            return (await http.post(url, json={})).status_code != 404
    return False
