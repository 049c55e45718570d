"""`egpu doctor --bundle FILE`: a report for maintainers in one file, without secrets.

All of it is collected in memory, within limits of size and time, and written at the end: an interrupted command leaves
no file. What could not be read is listed in `left-out.json`.
"""

import asyncio
import gzip
import io
import json
import platform
import tarfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import egpu
from egpu.api import names
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.api.vocabularies import BY_RESOURCE
from egpu.cli.embedding import steps
from egpu.cli.findings import Finding
from egpu.cli.output import note
from egpu.cli.redaction import Json, clean, listed, mapping, redacted, without_secrets
from egpu_base.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from egpu_base.api.kubernetes import Event, Node, Pod
from egpu_base.api.objects import Object
from egpu_base.api.quantities import format_mib
from egpu_base.errors import ElasticGPUError, NotAllowed, NotFound, Unavailable
from egpu_base.kubernetes import Client
from egpu_base.kubernetes.paths import path_of
from egpu_base.system.files import write_atomically

MAX_SECONDS: Final = 120.0
MAX_BYTES: Final = 32 << 20
"""Of all files, before compression."""
KIND_BYTES: Final = 8 << 20
"""Of all objects of one kind: a pod of a tenant may have 1.5 MiB."""
MAX_OBJECTS: Final = 2000
"""Of each kind; as many events."""
MAX_READ: Final = 20_000
"""Objects of one kind that are looked through for those that concern us."""
LOG_BYTES: Final = 200 << 10
LOG_LINES: Final = 2000
MAX_LOGS: Final = 64
PART_OF: Final = ("app.kubernetes.io/part-of", "elastic-gpu")
KINDS: Final[Sequence[type[Object]]] = (
    Node, ElasticGPU, ElasticGPUClass, ElasticGPUClaim, DeviceClass, ResourceSlice, ResourceClaim, Pod, Event,
)  # fmt: skip
NEWER: Final[Sequence[type[Object]]] = (DeviceClass, ResourceSlice, ResourceClaim)
"""Kinds that an API server may not serve, which is no gap of the report."""


@dataclass
class Report:
    """The files of a report by name, and what it lacks."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    left_out: list[Mapping[str, str]] = field(default_factory=list[Mapping[str, str]])

    def add(self, name: str, data: bytes) -> None:
        """Add a file, unless the report gets too large."""
        if sum(map(len, self.files.values())) + len(data) > MAX_BYTES:
            self.lack(name, f"the report has at most {MAX_BYTES >> 20} MiB")
        else:
            self.files[name] = data

    def add_json(self, name: str, value: Any) -> None:
        self.add(name, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())

    def lack(self, what: str, why: str) -> None:
        """Record that something could not be read."""
        self.left_out.append({"what": what, "why": without_secrets(why)})


async def write_bundle(client: Client, namespace: str, file: Path, *, findings: Mapping[str, Finding]) -> None:
    """Collect the report and write it to `file`, which has all of it or is not written. Raises Unavailable."""
    if not file.parent.is_dir():
        raise Unavailable(f"--bundle {file}: the folder {file.parent} does not exist; create it, or name another one")
    report = Report()
    with steps() as step:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await collect(client, namespace, report, findings=findings, step=step)
        except TimeoutError:
            report.lack("the rest", f"it took longer than {MAX_SECONDS:g} s")
    data = packed(report)
    await asyncio.to_thread(write_atomically, file, data, mode=0o600)
    note(f"wrote {file} ({format_mib(max(1, len(data) >> 20))}). Read it before you send it: it names nodes and pods")
    for one in report.left_out:
        note(f"{one['what']}: {one['why']}", label="not in it:", style="yellow")


async def collect(
    client: Client, namespace: str, report: Report, *, findings: Mapping[str, Finding], step: Callable[[str], None]
) -> None:
    """Fill the report. `step` is told what is read next. Raises Unavailable only if the API server is away."""
    known = {name: {**asdict(one), "state": one.state.value} for name, one in findings.items()}
    report.add_json("findings.json", clean(known))
    step("versions")
    report.add_json("versions.json", await _versions(client))
    concerned = _Concerned(namespace)
    for kind in KINDS:
        plural = kind.resource.plural
        step(plural)
        found = _Found()
        async for one in _objects(client, kind, namespace, report):
            if concerned.by(plural, one):
                concerned.learn(kind, one)
                found.add(redacted(plural, one))
        if found.lost:
            most = f"a report has at most {MAX_OBJECTS}, and {KIND_BYTES >> 20} MiB of a kind"
            report.lack(plural, f"{found.lost} of {found.lost + len(found.texts)}: {most}")
        report.add(f"objects/{plural}.json", found.data())
    await _logs(client, namespace, concerned.our_pods, report, step)


@dataclass
class _Found:
    """The newest objects of one kind, as texts: of each its part in the report alone is kept, while all are read."""

    texts: deque[bytes] = field(default_factory=deque[bytes])
    size: int = 0
    lost: int = 0

    def add(self, value: Any) -> None:
        text = json.dumps(value, indent=1, ensure_ascii=False).encode()
        self.texts.append(text)
        self.size += len(text)
        while self.size > KIND_BYTES or len(self.texts) > MAX_OBJECTS:
            self.size -= len(self.texts.popleft())  # the oldest, where they are sorted by time
            self.lost += 1

    def data(self) -> bytes:
        return b"[" + b",\n".join(self.texts) + b"]\n"


async def _versions(client: Client) -> Json:
    try:
        server = (await client.raw("GET", "/version")).get("gitVersion", "unknown")
    except ElasticGPUError as error:
        server = without_secrets(f"unknown: {error}")
    return {
        "egpu": egpu.__version__,
        "kubernetes": server,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "takenAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


class OurPod(NamedTuple):
    """A pod of the installation, whose logs belong into a report."""

    name: str
    containers: tuple[str, ...]
    is_ready: bool


@dataclass
class _Concerned:
    """Which objects belong into a report: ours, pods with GPUs, our own pods, and their nodes and events."""

    namespace: str
    keys: set[tuple[str, str, str]] = field(default_factory=set[tuple[str, str, str]])
    our_pods: list[OurPod] = field(default_factory=list[OurPod])

    def by(self, plural: str, value: Json) -> bool:
        match plural:
            case "pods":
                return self._is_ours(value) or _asks(value) or self._uses_our_claims(value)
            case "deviceclasses" | "resourceslices" | "resourceclaims":
                return _is_of_our_driver(plural, value, self.keys)
            case "events":
                about = mapping(value, "involvedObject")
                return (about.get("kind", ""), about.get("namespace", ""), about.get("name", "")) in self.keys
            case _:
                return True

    def learn(self, kind: type[Object], one: Json) -> None:
        metadata = mapping(one, "metadata")
        self.keys.add((kind.__name__, metadata.get("namespace", ""), metadata.get("name", "")))
        if kind is Pod and self._is_ours(one) and len(self.our_pods) < MAX_OBJECTS:
            containers = tuple(each["name"] for each in listed(one, "spec", "containers"))
            self.our_pods.append(OurPod(metadata["name"], containers, _is_ready(one)))

    def _uses_our_claims(self, pod: Json) -> bool:
        namespace = mapping(pod, "metadata").get("namespace", "")
        used = [*listed(pod, "spec", "resourceClaims"), *listed(pod, "status", "resourceClaimStatuses")]
        return any(("ResourceClaim", namespace, one.get("resourceClaimName", "")) in self.keys for one in used)

    def _is_ours(self, pod: Json) -> bool:
        label, value = PART_OF
        in_ours = mapping(pod, "metadata").get("namespace") == self.namespace
        return in_ours and mapping(pod, "metadata", "labels").get(label) == value


def _asks(pod: Json) -> bool:
    """Return whether a pod has a demand, or names a GPU resource."""
    annotations = mapping(pod, "metadata", "annotations")
    if names.DEMAND in annotations or names.ALLOCATION in annotations:
        return True
    containers = [*listed(pod, "spec", "containers"), *listed(pod, "spec", "initContainers")]
    return any(BY_RESOURCE.keys() & mapping(one, "resources", "limits") for one in containers)


def _is_of_our_driver(plural: str, value: Json, known: Collection[tuple[str, str, str]]) -> bool:
    """Return whether a slice, a class or a claim of resource.k8s.io is about our cards."""
    if plural == "resourceslices":
        return mapping(value, "spec").get("driver") == names.DRIVER
    configured = ("spec",) if plural == "deviceclasses" else ("spec", "devices")
    config = listed(value, *configured, "config")
    given = listed(value, "status", "allocation", "devices", "results")
    if any(one.get("driver") == names.DRIVER for one in [*given, *(mapping(one, "opaque") for one in config)]):
        return True
    asked = [mapping(one, "exactly").get("deviceClassName", "") for one in listed(value, *configured, "requests")]
    return any(("DeviceClass", "", one) in known for one in asked)


async def _objects(client: Client, kind: type[Object], namespace: str, report: Report) -> AsyncIterator[Json]:
    """Yield all objects of a kind; if that is not allowed, those of the installation's and the user's namespace."""
    plural, places = kind.resource.plural, list[str | None]([None])
    while places:
        place = places.pop(0)
        try:
            async for one in _pages(client, path_of(kind, place), report, plural):
                yield one
        except NotAllowed as error:
            report.lack(plural if place is None else f"{plural} of {place}", str(error))
            if place is None and kind.resource.namespaced:
                places = [*dict.fromkeys((namespace, client.namespace))]
        except ElasticGPUError as error:
            if not (isinstance(error, NotFound) and kind in NEWER):
                report.lack(plural, str(error))


async def _pages(client: Client, path: str, report: Report, plural: str) -> AsyncIterator[Json]:
    count = 0
    async for page in client.raw_pages(path, {}):
        if count >= MAX_READ:
            report.lack(plural, f"those after the first {count}")
            return
        count += len(page.items or ())
        for one in page.items or ():
            yield mapping(msgspec.json.decode(one))


async def _logs(
    client: Client, namespace: str, pods: Sequence[OurPod], report: Report, step: Callable[[str], None]
) -> None:
    """Add the end of each component's log. Pods that are not ready come first, in case there are many."""
    waiting = sorted(pods, key=lambda one: (one.is_ready, one.name))
    for pod in waiting[MAX_LOGS:]:
        report.lack(f"log of {pod.name}", f"a report has at most {MAX_LOGS} logs")
    for pod in waiting[:MAX_LOGS]:
        step(f"log of {pod.name}")
        path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}/log"
        for container in pod.containers:
            params = {"container": container, "tailLines": str(LOG_LINES), "limitBytes": str(4 * LOG_BYTES)}
            try:
                text = await client.text(path, params=params)
            except ElasticGPUError as error:
                report.lack(f"log of {pod.name}, container {container}", str(error))
                continue
            report.add(f"logs/{pod.name}/{container}.log", _end(without_secrets(text)))


def _end(text: str) -> bytes:
    """Return the last whole lines of a log."""
    data = text.encode()
    return data if len(data) <= LOG_BYTES else data[-LOG_BYTES:].partition(b"\n")[2]


def _is_ready(pod: Json) -> bool:
    conditions = listed(pod, "status", "conditions")
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def packed(report: Report) -> bytes:
    """Return the report as a compressed tar archive."""
    files = report.files | {"left-out.json": (json.dumps(report.left_out, indent=1) + "\n").encode()}
    target, now = io.BytesIO(), int(time.time())
    with gzip.GzipFile("", "wb", 6, target) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"egpu-report/{name}")
            member.size, member.mtime, member.mode = len(data), now, 0o600
            archive.addfile(member, io.BytesIO(data))
    return target.getvalue()
