"""The extender protocol from the scheduler's side, over HTTP."""

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

import httpx2
import msgspec

from egpu_base.api.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    HostPriority,
    MetaPod,
    MetaVictims,
)
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import OutcomeUnknown, Unavailable
from egpu_base.kubernetes.connection import KEEPALIVE_SECONDS
from egpu_base.kubernetes.transport import Transport

T = TypeVar("T")

TIMEOUT = httpx2.Timeout(5.0)
"""kube-scheduler's default for an extender."""
CONNECTIONS = 64
"""Bindings run in parallel."""
WEIGHT = 10
"""The weight of an extender's scores beside the plugins', as in `deploy/scheduler`."""


class Extender:
    """One extender, `nodeCacheCapable`, that binds the pods that use a managed resource."""

    def __init__(self, url: str, *, tls: ssl.SSLContext, managed_resources: frozenset[str]) -> None:
        """`tls` has the scheduler's certificate."""
        self._url = url.rstrip("/")
        self._server = httpx2.URL(self._url)
        self._transport = Transport(tls, at_most=CONNECTIONS, keepalive_seconds=KEEPALIVE_SECONDS)
        self._managed = managed_resources

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.aclose()

    def is_interested(self, pod: Pod) -> bool:
        """Return whether any container asks for a managed resource."""
        return any(
            self._managed & ((container.resources.limits or {}).keys() | (container.resources.requests or {}).keys())
            for container in pod.all_containers
            if container.resources is not None
        )

    async def filter(self, pod: Pod, node_names: list[str]) -> ExtenderFilterResult:
        """Ask which of the nodes fit. Raises Unavailable, for other nodes in the answer as well."""
        answer = await self._post("filter", ExtenderArgs(pod=pod, node_names=node_names), ExtenderFilterResult)
        if answer.error:
            raise Unavailable(answer.error)
        if strangers := set(answer.node_names or ()).difference(node_names):
            raise Unavailable(
                f'extender "{self._url}" claims a filtered node "{min(strangers)}"'
                " which is not found in the input node list"
            )
        return answer

    async def prioritize(self, pod: Pod, node_names: list[str]) -> dict[str, int]:
        """Return scores from 0 to 10 by node. Raises Unavailable."""
        answer = await self._post("prioritize", ExtenderArgs(pod=pod, node_names=node_names), list[HostPriority])
        return {host.host: host.score for host in answer}

    async def preempt(self, pod: Pod, victims: Mapping[str, Sequence[Pod]]) -> dict[str, list[str]]:
        """Return the victims, by UID, that would have to go on each node. A missing node is no candidate. Raises
        Unavailable."""
        meta = {node: MetaVictims(pods=[MetaPod(uid=pod.uid) for pod in pods]) for node, pods in victims.items()}
        arguments = ExtenderPreemptionArgs(pod=pod, node_name_to_meta_victims=meta)
        answer = await self._post("preempt", arguments, ExtenderPreemptionResult)
        return {
            node: [victim.uid for victim in kept.pods or []] for node, kept in answer.node_name_to_meta_victims.items()
        }

    async def bind(self, pod: Pod, node: str) -> None:
        """Bind the pod. Raises Unavailable with the extender's reason (a change since the filter), or
        OutcomeUnknown."""
        arguments = ExtenderBindingArgs(pod_name=pod.name, pod_namespace=pod.namespace, pod_uid=pod.uid, node=node)
        try:
            answer = await self._post("bind", arguments, ExtenderBindingResult)
        except Unavailable as error:
            raise OutcomeUnknown(str(error)) from error
        if answer.error:
            raise Unavailable(answer.error)

    async def _post(self, verb: str, body: msgspec.Struct, kind: type[T]) -> T:
        url, content = f"{self._url}/{verb}", msgspec.json.encode(body)
        lines = (
            b"POST %b/%b HTTP/1.1" % (self._server.raw_path.rstrip(b"/"), verb.encode()),
            b"Host: %b" % self._server.netloc,
            b"Content-Type: application/json",
            b"Content-Length: %d" % len(content),
        )
        try:
            answer = await self._transport.exchange(b"\r\n".join((*lines, b"", content)), self._server, TIMEOUT)
        except httpx2.HTTPError as error:
            raise Unavailable(f'Post "{url}": {type(error).__name__} {error}'.rstrip()) from error
        if answer.status != 200:
            raise Unavailable(f"failed {verb} with extender at URL {url}, code {answer.status}")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"extender {verb}: not an answer of the protocol: {error}") from error
