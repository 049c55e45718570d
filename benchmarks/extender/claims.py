"""Allocations of ResourceClaims beside bindings of pods that ask for the same: each as fast as the extender can.

Both come all at once, against an API server and an extender of their own. A binding is one request of kube-scheduler,
which knows the node already; filter and prioritize come before it, and are not counted here. A claim's allocation
chooses node and cards.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.extender.caller import Caller, processor_seconds
from benchmarks.extender.processes import component, said_its_port
from benchmarks.extender.world import (
    ALLOCATED,
    HELD,
    RELEASE,
    Kind,
    bind_body,
    claim,
    filter_body,
    node_name,
    waiting,
    with_claim,
)
from egpu.api import names

COUNT: Final = 2000
BINDERS: Final = 16
"""The number of bindings under way at one time."""
ASKED: Final = Kind(cards=1, core=10, memory_mib=4_096, often=0)
"""Small, so that it fits on each node that has any room."""
END_SECONDS: Final = 300.0
PODS: Final = "/api/v1/namespaces/default/pods"
DEVICE_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class Rate(NamedTuple):
    """How many a second, and the extender's processor time of each."""

    per_second: float
    processor_ms: float


class Rates(NamedTuple):
    """Bindings and allocations of one run."""

    binds: Rate
    claims: Rate


def run(nodes: int, folder: Path) -> Rates:
    """Measure both."""
    return Rates(_binds(nodes, folder), _claims(nodes, folder))


def _binds(nodes: int, folder: Path) -> Rate:
    own, failed = threading.local(), list[bytes]()
    with ExitStack() as stack:
        server = stack.enter_context(
            said_its_port("benchmarks.extender.api_server", str(nodes), str(folder), names.PRICED)
        )
        extender = stack.enter_context(component("extender", folder, server.port))
        api = stack.enter_context(Caller(server.port, folder, server.pid))
        pods = [waiting(f"bound-{number}", ASKED) for number in range(COUNT)]
        for pod in pods:
            api.post(PODS, msgspec.json.encode(pod))

        def connect() -> None:
            own.caller = stack.enter_context(Caller(extender.port, folder, extender.pid))

        def select(number: int) -> None:
            own.caller.post("/filter", filter_body(pods[number], [node_name(number % nodes)]))

        def bind(number: int) -> None:
            answer = own.caller.post("/bind", bind_body(pods[number], node_name(number % nodes))).body
            if msgspec.json.decode(answer)["Error"]:
                failed.append(answer)

        with ThreadPoolExecutor(BINDERS, initializer=connect) as binders:
            list(binders.map(select, range(COUNT)))  # the extender binds no pod that it has not filtered
            began, spent = time.perf_counter(), processor_seconds(extender.pid)
            list(binders.map(bind, range(COUNT)))
            took, spent = time.perf_counter() - began, processor_seconds(extender.pid) - spent
    if len(failed) > COUNT // 20:
        raise RuntimeError(f"{len(failed)} of {COUNT} bindings failed: {failed[0][:300]!r}")
    return Rate((COUNT - len(failed)) / took, spent / COUNT * 1e3)


def _claims(nodes: int, folder: Path) -> Rate:
    with ExitStack() as stack:
        server = stack.enter_context(
            said_its_port("benchmarks.extender.api_server", str(nodes), str(folder), names.PRICED)
        )
        extender = stack.enter_context(component("extender", folder, server.port))
        api = stack.enter_context(Caller(server.port, folder, server.pid))
        for number in range(COUNT):
            pod = with_claim(waiting(f"claims-{number}", ASKED))
            api.post(DEVICE_CLAIMS, msgspec.json.encode(claim(pod["metadata"]["name"], ASKED)))
            api.post(f"/{HELD}", msgspec.json.encode(pod))
        spent = processor_seconds(extender.pid)
        api.post(RELEASE, b"{}")
        deadline = time.monotonic() + END_SECONDS
        while len(done := msgspec.json.decode(api.get(ALLOCATED).body, type=list[float])) < COUNT:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(done)} of {COUNT} claims were allocated in {END_SECONDS:g} s")
            time.sleep(0.2)
        spent = processor_seconds(extender.pid) - spent
    return Rate(COUNT / done[-1], spent / COUNT * 1e3)
