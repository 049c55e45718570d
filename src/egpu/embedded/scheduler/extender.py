"""The scheduler's side of the extender protocol: what kube-scheduler would send, over HTTP."""

import ssl
from types import TracebackType
from typing import Self, TypeVar

import httpx2
import msgspec

from egpu.api import names
from egpu.api.extender import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    HostPriority,
)
from egpu.api.kubernetes import Pod
from egpu.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")

TIMEOUT_SECONDS = 5.0
"""kube-scheduler's default for an extender."""


class Extender:
    """One extender, `nodeCacheCapable`, that binds the pods that use a managed resource."""

    def __init__(
        self, url: str, *, tls: ssl.SSLContext, managed_resources: frozenset[str] = frozenset({names.SLOT})
    ) -> None:
        """`tls` has the scheduler's certificate."""
        self._http = httpx2.AsyncClient(base_url=url, verify=tls, timeout=TIMEOUT_SECONDS, trust_env=False)
        self._managed = managed_resources

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def is_interested(self, pod: Pod) -> bool:
        """Whether any container asks for a managed resource."""
        return any(
            self._managed & ((container.resources.limits or {}).keys() | (container.resources.requests or {}).keys())
            for container in pod.all_containers
            if container.resources is not None
        )

    async def filter(self, pod: Pod, node_names: list[str]) -> ExtenderFilterResult:
        """Raises Unavailable."""
        answer = await self._post("filter", ExtenderArgs(pod=pod, node_names=node_names), ExtenderFilterResult)
        if answer.error:
            raise Unavailable(f"extender filter: {answer.error}")
        return answer

    async def prioritize(self, pod: Pod, node_names: list[str]) -> dict[str, int]:
        """Scores from 0 to 10 by node. Raises Unavailable."""
        answer = await self._post("prioritize", ExtenderArgs(pod=pod, node_names=node_names), list[HostPriority])
        return {host.host: host.score for host in answer}

    async def bind(self, pod: Pod, node: str) -> None:
        """Raises Unavailable with the extender's reason (something changed since the filter), or OutcomeUnknown."""
        arguments = ExtenderBindingArgs(pod_name=pod.name, pod_namespace=pod.namespace, pod_uid=pod.uid, node=node)
        try:
            answer = await self._post("bind", arguments, ExtenderBindingResult)
        except Unavailable as error:
            raise OutcomeUnknown(str(error)) from error
        if answer.error:
            raise Unavailable(f"extender bind to {node}: {answer.error}")

    async def _post(self, verb: str, body: msgspec.Struct, kind: type[T]) -> T:
        try:
            response = await self._http.post(
                f"/{verb}", content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            )
        except httpx2.HTTPError as error:
            raise Unavailable(f"extender {verb}: {type(error).__name__} {error}") from error
        if response.status_code != 200:
            raise Unavailable(f"extender {verb}: HTTP {response.status_code} {response.text[:200]}")
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"extender {verb}: not an answer of the protocol: {error}") from error
