"""Allocations of ResourceClaims beside bindings of pods that ask for the same: each as fast as the extender can.

Both come all at once, against an API server and an extender of their own. A binding is one request of kube-scheduler,
which knows the node already; filter and prioritize come before it, and are not counted here. A claim's allocation
chooses node and cards. Most claims were marked by the webhook at their creation, whose time stands beside that of the
extender. Claims that were created while no webhook answered are measured as well.
"""

import base64
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.extender.caller import Caller, processor_seconds
from benchmarks.extender.processes import component, said_its_port
from benchmarks.extender.world import (
    ALLOCATED,
    CLAIMS,
    HELD,
    RELEASE,
    Json,
    Kind,
    bind_body,
    claim,
    filter_body,
    node_name,
    review_body,
    waiting,
    with_claim,
)
from egpu.api import names
from egpu_sim.cluster.apiserver.patching.json_patch import json_patch

COUNT: Final = 2000
BINDERS: Final = 16
"""The number of bindings under way at one time."""
ASKED: Final = Kind(cards=1, core=10, memory_mib=4_096, often=0)
"""Small, so that it fits on each node that has any room."""
END_SECONDS: Final = 300.0
PODS: Final = "/api/v1/namespaces/default/pods"
DEVICE_CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class Rate(NamedTuple):
    """How many a second, and the processor time of each: the extender's, and before it the webhook's."""

    per_second: float
    processor_ms: float
    webhook_ms: float = 0.0


class Rates(NamedTuple):
    """Bindings and allocations of one run. `unmarked`: claims that the webhook did not see."""

    binds: Rate
    claims: Rate
    unmarked: Rate


def run(nodes: int, folder: Path) -> Rates:
    """Measure all. The webhook's reviews of pods have a benchmark of their own."""
    made = [claim(f"claims-{number}", ASKED) for number in range(COUNT)]
    marked, webhook_ms = _marked(folder, made)
    claims = _claims(nodes, folder, marked)._replace(webhook_ms=webhook_ms)
    return Rates(_binds(nodes, folder), claims, _claims(nodes, folder, made))


def _marked(folder: Path, made: Sequence[Json]) -> tuple[list[Json], float]:
    """Return the claims as the webhook leaves them, and its processor time of each in ms."""
    found: list[Json] = []
    with ExitStack() as stack:
        server = stack.enter_context(said_its_port("benchmarks.extender.api_server", "1", str(folder), names.PRICED))
        webhook = stack.enter_context(component("webhook", folder, server.port))
        asked = stack.enter_context(Caller(webhook.port, folder, webhook.pid))
        spent = processor_seconds(webhook.pid)
        for number, one in enumerate(made):
            answer = asked.post("/mutate", review_body(one, f"review-{number}", resource=CLAIMS)).body
            patch = base64.b64decode(msgspec.json.decode(answer)["response"]["patch"])
            found.append(json_patch(one, msgspec.json.decode(patch)))
        spent = processor_seconds(webhook.pid) - spent
    return found, spent / len(made) * 1e3


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


def _claims(nodes: int, folder: Path, made: Sequence[Json]) -> Rate:
    with ExitStack() as stack:
        server = stack.enter_context(
            said_its_port("benchmarks.extender.api_server", str(nodes), str(folder), names.PRICED)
        )
        extender = stack.enter_context(component("extender", folder, server.port))
        api = stack.enter_context(Caller(server.port, folder, server.pid))
        for one in made:
            api.post(DEVICE_CLAIMS, msgspec.json.encode(one))
            api.post(f"/{HELD}", msgspec.json.encode(with_claim(waiting(one["metadata"]["name"], ASKED))))
        spent = processor_seconds(extender.pid)
        api.post(RELEASE, b"{}")
        deadline = time.monotonic() + END_SECONDS
        while len(done := msgspec.json.decode(api.get(ALLOCATED).body, type=list[float])) < COUNT:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(done)} of {COUNT} claims were allocated in {END_SECONDS:g} s")
            time.sleep(0.2)
        spent = processor_seconds(extender.pid) - spent
    return Rate(COUNT / done[-1], spent / COUNT * 1e3)
