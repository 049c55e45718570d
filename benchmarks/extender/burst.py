"""A burst: a great many pods at once, scheduled one after the other, with bindings in parallel."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.extender.caller import Asked, Caller
from benchmarks.extender.listing import Listing
from benchmarks.extender.processes import Process, component, said_its_port
from benchmarks.extender.world import Json, arrivals, bind_body, filter_body, node_name

PODS: Final = 2000
BINDERS: Final = 16
"""The number of bindings under way at one time."""
GOAL_SLOWEST_SECONDS: Final = 5.0
"""The time after which kube-scheduler gives up a request to an extender."""


ROUNDS: Final = 10
"""The time to reschedule pods whose cards another pod got meanwhile: a pod's filter may be called before the binding of
the pod before it."""


class Burst(NamedTuple):
    """The number of bound pods and of repeated schedulings, and the duration of the slowest request."""

    placed: int
    again: int
    slowest_seconds: float


def run(nodes: int, folder: Path) -> Burst:
    """Run PODS of them, against an API server and an extender of their own. Pods with several cards each would not have
    room in the end."""
    pods = list(arrivals(PODS, seed=2, most_cards=1))
    listing = Listing([node_name(number) for number in range(nodes)])
    with ExitStack() as stack:
        server = stack.enter_context(said_its_port("benchmarks.extender.api_server", str(nodes), str(folder)))
        extender = stack.enter_context(component("extender", folder, server.port))
        api = stack.enter_context(Caller(server.port, folder, server.pid))
        made = [api.post("/api/v1/namespaces/default/pods", msgspec.json.encode(pod)) for pod in pods]
        return _scheduled([msgspec.json.decode(one.body) for one in made], listing, extender, folder)


def _scheduled(pods: Sequence[Json], listing: Listing, extender: Process, folder: Path) -> Burst:
    slowest, own = 0.0, threading.local()

    def asked(caller: Caller, verb: str, body: bytes) -> Any:
        nonlocal slowest
        answer: Asked = caller.post(f"/{verb}", body)
        slowest = max(slowest, answer.seconds)
        return msgspec.json.decode(answer.body)

    with ExitStack() as stack:
        one_by_one = stack.enter_context(Caller(extender.port, folder, extender.pid))

        def connect() -> None:
            own.caller = stack.enter_context(Caller(extender.port, folder, extender.pid))

        def bind(pod: Json, node: str) -> bool:
            return not asked(own.caller, "bind", bind_body(pod, node))["Error"]

        def schedule(pod: Json) -> Future[bool] | None:
            """Return its binding, which is under way, or None if it fits nowhere."""
            fits = asked(one_by_one, "filter", filter_body(pod, listing.next()))
            if fits["Error"] or not fits["NodeNames"]:
                return None
            scores = asked(one_by_one, "prioritize", filter_body(pod, fits["NodeNames"]))
            return binders.submit(bind, pod, max(scores, key=lambda one: one["Score"])["Host"])

        binders = stack.enter_context(ThreadPoolExecutor(BINDERS, initializer=connect))
        waiting, again = pods, 0
        for _ in range(ROUNDS):
            begun = [schedule(pod) for pod in waiting]
            waiting = [pod for pod, bound in zip(waiting, begun, strict=True) if bound is None or not bound.result()]
            again += len(waiting)
    return Burst(len(pods) - len(waiting), again, slowest)
