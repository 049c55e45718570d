"""kube-scheduler's extender protocol over HTTP. Source: k8s.io/kube-scheduler/extender/v1 and its caller."""

import time
from collections.abc import Callable
from itertools import compress
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from egpu.apps.extender.answers import priorities, reasons
from egpu.apps.extender.binder import Binder
from egpu.apps.extender.filter_results import FilterResults
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.name_lists import NameLists
from egpu.apps.extender.placing import Placing, Verdict
from egpu.apps.extender.questions import Question, Questions
from egpu_base.api.extender import (
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterAnswer,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from egpu_base.errors import ElasticGPUError, InvalidInput
from egpu_base.http.post_server import Answer, AtOnce, Post, Posts
from egpu_base.monitoring import Guard, monitoring_app

MAX_BODY_BYTES = 16 * 1024 * 1024
"""15,000 node names of 253 characters and a pod of 3 MiB are 7 MB; the victims of a preemption on 1,500 nodes are as
much again."""
MAX_BIND_BYTES = 16 * 1024
MAX_HELD_BYTES = 4 * MAX_BODY_BYTES
"""The limit for all bodies at one time. A kube-scheduler sends one after the other, except bindings."""

_BAD_INPUT: Final = (InvalidInput, RecursionError)
A = TypeVar("A")

log = structlog.get_logger(__name__)


class ExtenderServer:
    """The routes. Every answer is JSON; every malformed request gets a 400 with the reason."""

    def __init__(
        self,
        placing: Placing,
        binder: Binder,
        filtered: FilterResults,
        *,
        metrics: Metrics,
        not_ready: Callable[[], str | None],
    ) -> None:
        self._metrics = metrics
        self._filtered = filtered
        self._placing = placing
        self._binder = binder
        self._not_ready = not_ready
        self._lists = NameLists()
        self._questions = Questions(self._lists)

    def posts(self) -> Posts:
        """Return the routes for kube-scheduler."""
        questions = {
            "filter": self.filter,
            "prioritize": self.prioritize,
            "preempt": self.preempt,
            # The policy file of the vGPU article uses this name for its one verb.
            "predicates": self.filter,
        }
        paths = {verb: Post(AtOnce(_guarded(answer)), MAX_BODY_BYTES) for verb, answer in questions.items()}
        paths["bind"] = Post(self.bind, MAX_BIND_BYTES)
        aliases = {f"scheduler/{verb}": post for verb, post in paths.items()}
        return Posts({f"/{path}": post for path, post in (paths | aliases).items()}, at_most_bytes=MAX_HELD_BYTES)

    def monitoring_app(self, guard: Guard, unhealthy: Callable[[], str | None]) -> Starlette:
        """Return health, metrics, and explanations. /readyz shows `unhealthy`; /leadz shows for everyone whether this
        replica answers kube-scheduler (503 with the reason if not)."""
        explain = Route("/explain", guard.around(self.explain), methods=["GET"])
        more = [explain, Route("/leadz", self.leading, methods=["GET"])]
        return monitoring_app(guard, unhealthy, registry=self._metrics.registry, more=more)

    async def leading(self, _: Request) -> Response:
        reason = self._not_ready()
        return PlainTextResponse("ok\n" if reason is None else f"{reason}\n", 200 if reason is None else 503)

    def filter(self, body: bytes) -> Answer:
        asked = self._questions.read(body)
        if (reason := self._not_ready()) is not None:
            return _json(ExtenderFilterAnswer(error=f"extender not ready: {reason}"))
        with self._metrics.filter_seconds.time():
            return _json(self._filtered_answer(asked, self._placing.filter(asked.pod, asked.nodes)))

    def _filtered_answer(self, asked: Question, verdict: Verdict) -> ExtenderFilterAnswer:
        self._metrics.filters.labels("fits" if verdict.ok.any() else "refused").inc()
        failed = msgspec.Raw(reasons(self._lists, asked.nodes, verdict.refused, resolvable=True))
        unresolvable = msgspec.Raw(reasons(self._lists, asked.nodes, verdict.refused, resolvable=False))
        if asked.full_nodes is None:
            fitting = asked.nodes.subset(verdict.ok)
            text = self._lists.write(fitting)
            self._questions.expect(text, fitting)
            return ExtenderFilterAnswer(
                node_names=msgspec.Raw(text), failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable
            )
        kept: dict[str, object] = {"items": list(compress(asked.full_nodes, verdict.ok.tolist()))}
        return ExtenderFilterAnswer(nodes=kept, failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable)

    def prioritize(self, body: bytes) -> Answer:
        asked = self._questions.read(body)
        if self._not_ready() is not None:
            return Answer(priorities(self._lists, asked.nodes, np.zeros(len(asked.nodes), dtype=np.int64)))
        with self._metrics.prioritize_seconds.time():
            return Answer(priorities(self._lists, asked.nodes, self._placing.prioritize(asked.pod, asked.nodes)))

    async def bind(self, body: bytes) -> Answer:
        try:
            args = _binding(body)
        except _BAD_INPUT as error:
            return _bad(error)
        if (reason := self._not_ready()) is not None:
            return _json(ExtenderBindingResult(error=f"extender not ready: {reason}"))
        started = time.monotonic()
        key = f"{args.pod_namespace}/{args.pod_name}"
        try:
            with self._metrics.bind_seconds.time():
                self._filtered.check(args.pod_uid, args.node)
                await self._binder.bind(args)
        except ElasticGPUError as error:
            self._metrics.binds.labels(type(error).__name__).inc()
            log.warning("not bound", pod=key, node=args.node, kind=type(error).__name__, reason=str(error))
            return _json(ExtenderBindingResult(error=str(error)))
        self._metrics.binds.labels("bound").inc()
        log.info("bound", pod=key, node=args.node, seconds=round(time.monotonic() - started, 4))
        return _json(ExtenderBindingResult())

    def preempt(self, body: bytes) -> Answer:
        args = _decode(body, ExtenderPreemptionArgs)
        if self._not_ready() is not None:
            return _json(ExtenderPreemptionResult())
        return _json(self._placing.preempt(args))

    async def explain(self, request: Request) -> Response:
        name, namespace = request.query_params.get("pod"), request.query_params.get("namespace", "default")
        if not name:
            return _page({"Error": "pod: add ?namespace=NAMESPACE&pod=NAME"}, status=400)
        found = self._placing.explain(name, namespace)
        if found is None:
            return _page({"error": f"there is no pod {namespace}/{name}"}, status=404)
        return _page(found)


def _guarded(answer: Callable[[bytes], Answer]) -> Callable[[bytes], Answer]:
    def guarded(body: bytes) -> Answer:
        try:
            return answer(body)
        except _BAD_INPUT as error:
            return _bad(error)

    return guarded


def _bad(error: InvalidInput | RecursionError) -> Answer:
    """Return a 400 with its reason."""
    reason = "body: nested too deeply" if isinstance(error, RecursionError) else str(error)
    return _json({"Error": reason}, status=400)


def _binding(body: bytes) -> ExtenderBindingArgs:
    """Decode the body. Raises InvalidInput."""
    args = _decode(body, ExtenderBindingArgs)
    for name, value in (
        ("PodName", args.pod_name),
        ("PodNamespace", args.pod_namespace),
        ("PodUID", args.pod_uid),
        ("Node", args.node),
    ):
        if not value:
            raise InvalidInput(name, "must not be empty")
    return args


def _decode(body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput("body", f"not {kind.__name__}: {error}") from error


def _json(value: Any, *, status: int = 200) -> Answer:
    return Answer(msgspec.json.encode(value), status)


def _page(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
