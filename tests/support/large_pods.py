"""An API server that lists pods as large as an API server takes, and the memory that their followers need.

python -m support.large_pods KIND...        (in tests/; prints MiB at the most, and pods in the copy)
"""

import asyncio
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2

from egpu.adapters.kubernetes.followed import FollowedView
from egpu.api import names
from egpu_base.kubernetes import Client

PODS: Final = 500
POD_BYTES: Final = 1_400_000
"""etcd takes 1.5 MiB."""
ANNOTATION_BYTES: Final = 250_000
"""An API server takes 256 KiB of them."""

_chance = random.Random(1)


def _noise(size: int) -> str:
    """Return text that does not compress."""
    return _chance.randbytes(size * 3 // 4 // 2).hex()


def _terms() -> dict[str, Any]:
    one = {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}
    terms = [one] * (POD_BYTES // len(json.dumps(one)))
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _pod(**spec: Any) -> dict[str, Any]:
    demand = '{"containers":{"app":{"core":10,"memoryMiB":1024}}}'
    metadata: dict[str, Any] = {"namespace": "default", "annotations": {names.DEMAND: demand}}
    container = {"name": "app", "image": "x", "resources": {"requests": {names.GPU_CORE: "10"}}}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]} | spec, "status": {}}


def _with(metadata: dict[str, Any]) -> dict[str, Any]:
    pod = _pod()
    pod["metadata"] |= metadata
    return pod


def _annotated() -> dict[str, Any]:
    pod = _pod(affinity=_terms())
    pod["metadata"]["annotations"] |= {"elasticgpu.io/x": _noise(ANNOTATION_BYTES)}
    return pod


KINDS: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "variables": lambda: _pod(
        containers=[{"name": "app", "env": [{"name": "A", "value": _noise(2 * POD_BYTES)}], "command": ["x"]}]
    ),
    "annotations": _annotated,
    "labels": lambda: _with({"labels": {f"{_noise(60)}{number}": _noise(60) for number in range(POD_BYTES // 80)}}),
    "affinity": lambda: _pod(affinity=_terms()),
    "tolerations": lambda: _pod(tolerations=[{"key": str(number)} for number in range(POD_BYTES // 18)]),
    "volumes": lambda: _pod(volumes=[{"name": str(number), "emptyDir": {}} for number in range(POD_BYTES // 32)]),
    "containers": lambda: _pod(containers=[{"name": str(number)} for number in range(POD_BYTES // 18)]),
    "placed": lambda: _annotated() | {"spec": {"nodeName": "n", "containers": [], "affinity": _terms()}},
}
"""By the part of a pod that is large."""


async def server(kinds: list[str], pods: int = PODS) -> asyncio.Server:
    """Serve so many pods of these kinds in turn, by pages, and watches in which nothing happens."""
    made = [json.dumps(KINDS[kind]()).encode() for kind in kinds]

    def pod(number: int) -> bytes:
        ours = b'{"metadata": {"name": "p-%d", "uid": "u-%d", "resourceVersion": "%d", ' % (number, number, number + 1)
        kind = made[number % len(made)]
        return kind.replace(b'{"kind": "Pod", "metadata": {', b'{"kind": "Pod", ' + ours[1:], 1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = urlsplit(head.split(b" ", 2)[1].decode())
            asked = {key: values[0] for key, values in parse_qs(path.query).items()}
            if "watch" in asked:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                await reader.read()  # until it goes away
                return
            first, limit = int(asked.get("continue", "0")), int(asked.get("limit", pods))
            is_pods = path.path.endswith("/pods")
            numbers = range(first, min(first + limit, pods)) if is_pods else range(0)
            more = str(numbers.stop) if is_pods and numbers.stop < pods else ""
            start = b'{"metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % more.encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in [start, *((b"," if number > first else b"") + pod(number) for number in numbers), b"]}"]:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
            writer.write(b"0\r\n\r\n")

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (OSError, EOFError):
            pass  # it went away
        finally:
            writer.close()

    return await asyncio.start_server(quietly, "127.0.0.1", 0)


async def follow(url: str) -> dict[str, Any]:
    """Follow that server in this process; return what it took."""
    async with Client(httpx2.AsyncClient(base_url=url, timeout=60.0)) as client:
        view = FollowedView(client)
        running = asyncio.create_task(view.caches.run())
        await view.listed()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return {"mib": _most_mib(), "pods": len(view.pods)}


def _most_mib() -> int:
    """Return the memory of this process at its most. For getrusage(2) that begins with the parent's."""
    (line,) = (one for one in Path("/proc/self/status").read_text().split("\n") if one.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024


async def measured(kinds: list[str], pods: int = PODS) -> dict[str, int]:
    """Serve here, and follow in another process; return its MiB at most, and the pods that it has."""
    serving = await server(kinds, pods)
    port = serving.sockets[0].getsockname()[1]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "support.large_pods", "--follow", f"http://127.0.0.1:{port}",
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    said, _ = await child.communicate()
    serving.close()
    return json.loads(said.splitlines()[-1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--follow"]:
        print(json.dumps(asyncio.run(follow(sys.argv[2]))))
    else:
        for kind in sys.argv[1:] or [*KINDS, " ".join(KINDS)]:
            print(kind, asyncio.run(measured(kind.split())), flush=True)
