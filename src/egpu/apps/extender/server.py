"""kube-scheduler's extender protocol over HTTP. Source: k8s.io/kube-scheduler/extender/v1 and its caller."""

import asyncio
import time
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from egpu.adapters.monitoring import Guard, monitoring_app
from egpu.adapters.posts import Handler, Posts
from egpu.adapters.web import body_within
from egpu.api.extender import (
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderFilterAnswer,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
)
from egpu.apps.extender.binding import Binder
from egpu.apps.extender.filtered import Filtered
from egpu.apps.extender.metrics import Metrics
from egpu.apps.extender.placing import MAX_SCORE, Placing, Verdict
from egpu.apps.extender.questions import Question, Questions
from egpu.core.arrays import IntArray
from egpu.core.placement.node_names import NodeNames
from egpu.errors import ElasticGPUError, InvalidInput

MAX_BODY_BYTES = 16 * 1024 * 1024
"""15,000 names of nodes, of 253 characters each, and a pod of 3 MiB are 7 MB; the victims of a preemption on 1,500
nodes are as much again."""
MAX_BIND_BYTES = 16 * 1024
MAX_BODIES = 4
"""Bodies read and answered at once; others wait. A kube-scheduler sends one after the other, but for bindings."""

_MARK: Final = b"\x01"
"""Stands for a score until it is known. No JSON has such a letter."""
_DIGITS: Final = np.frombuffer(b"0123456789" + _MARK, dtype=np.uint8)
"""By score; the highest, which has two, keeps its mark."""

A = TypeVar("A")

log = structlog.get_logger(__name__)


class ExtenderServer:
    """The routes; every answer is JSON, every malformed request a 400 that says what is wrong."""

    def __init__(
        self,
        placing: Placing,
        binder: Binder,
        filtered: Filtered,
        *,
        metrics: Metrics,
        not_ready: Callable[[], str | None],
    ) -> None:
        self._metrics = metrics
        self._filtered = filtered
        self._placing = placing
        self._binder = binder
        self._not_ready = not_ready
        self._questions = Questions()
        self._bodies = asyncio.Semaphore(MAX_BODIES)

    def app(self) -> Posts:
        """What kube-scheduler asks."""
        verbs: Mapping[str, Handler] = {
            "filter": self.filter,
            "prioritize": self.prioritize,
            "bind": self.bind,
            "preempt": self.preempt,
        }
        aliases = {f"scheduler/{verb}": handler for verb, handler in verbs.items()}
        # The policy file of the vGPU article calls its one verb so.
        paths = {**verbs, **aliases, "predicates": self.filter, "scheduler/predicates": self.filter}
        return Posts({f"/{path}": _guarded(handler) for path, handler in paths.items()})

    def monitoring_app(self, guard: Guard) -> Starlette:
        """Health, metrics, and explanations."""
        explain = Route("/explain", guard.around(_guarded(self.explain)), methods=["GET"])
        return monitoring_app(guard, self._not_ready, registry=self._metrics.registry, more=[explain])

    async def filter(self, request: Request) -> Response:
        async with self._bodies:
            body = await body_within(request, MAX_BODY_BYTES)
            asked = self._questions.read(body)
            if (reason := self._not_ready()) is not None:
                return _json(ExtenderFilterAnswer(error=f"extender not ready: {reason}"))
            with self._metrics.filter_seconds.time():
                return _json(self._filtered_answer(asked, self._placing.filter(asked.pod, asked.nodes)))

    def _filtered_answer(self, asked: Question, verdict: Verdict) -> ExtenderFilterAnswer:
        failed, unresolvable = verdict.failed, verdict.unresolvable
        self._metrics.filters.labels("fits" if verdict.ok.any() else "refused").inc()
        if asked.full_nodes is None:
            names = msgspec.Raw(self._questions.expect(asked.nodes, verdict.ok))
            return ExtenderFilterAnswer(
                node_names=names, failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable
            )
        kept: dict[str, object] = {"items": list(compress(asked.full_nodes, verdict.ok.tolist()))}
        return ExtenderFilterAnswer(nodes=kept, failed_nodes=failed, failed_and_unresolvable_nodes=unresolvable)

    async def prioritize(self, request: Request) -> Response:
        async with self._bodies:
            asked = self._questions.read(await body_within(request, MAX_BODY_BYTES))
            if self._not_ready() is not None:
                return _answer(priorities(asked.nodes, np.zeros(len(asked.nodes), dtype=np.int64)))
            with self._metrics.prioritize_seconds.time():
                return _answer(priorities(asked.nodes, self._placing.prioritize(asked.pod, asked.nodes)))

    async def bind(self, request: Request) -> Response:
        args = _decode(await body_within(request, MAX_BIND_BYTES), ExtenderBindingArgs)
        empty = [
            name
            for name, value in (
                ("PodName", args.pod_name),
                ("PodNamespace", args.pod_namespace),
                ("PodUID", args.pod_uid),
                ("Node", args.node),
            )
            if not value
        ]
        if empty:
            raise InvalidInput(empty[0], "must not be empty")
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

    async def preempt(self, request: Request) -> Response:
        async with self._bodies:
            args = await _read(request, ExtenderPreemptionArgs)
            if self._not_ready() is not None:
                return _json(ExtenderPreemptionResult())
            return _json(self._placing.preempt(args))

    async def explain(self, request: Request) -> Response:
        name, namespace = request.query_params.get("pod"), request.query_params.get("namespace", "default")
        if not name:
            raise InvalidInput("pod", "give ?namespace=NAMESPACE&pod=NAME")
        found = self._placing.explain(name, namespace)
        if found is None:
            return _json({"error": f"there is no pod {namespace}/{name}"}, status=404)
        return _json(found)


def _guarded(handler: Handler) -> Handler:
    """Bad input becomes a 400 with its reason; our own mistakes a logged 500. Neither ends the process."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except InvalidInput as error:
            return _json({"Error": str(error)}, status=400)
        except HTTPException as error:
            return _json({"Error": error.detail}, status=error.status_code)
        except RecursionError:
            return _json({"Error": "body: nested too deeply"}, status=400)
        except Exception:
            log.exception("request failed", path=request.url.path)
            return _json({"Error": "internal error: see the extender's log"}, status=500)

    return guarded


async def _read(request: Request, kind: type[A]) -> A:
    return _decode(await body_within(request, MAX_BODY_BYTES), kind)


def _decode(body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidInput("body", f"not {kind.__name__}: {error}") from error


def priorities(nodes: NodeNames, scores: IntArray) -> bytes:
    """A HostPriorityList, put together from the names as JSON: an object for each of thousands costs more than the
    scores themselves. Raises InvalidInput for what is no name of a node."""
    if not len(nodes):
        return b"[]"
    text = msgspec.json.encode(nodes.names)[1:-1].replace(b'",', b'","Score":%b},{"Host":' % _MARK)
    written = bytearray(b'[{"Host":%b,"Score":%b}]' % (text, _MARK))
    letters = np.frombuffer(written, dtype=np.uint8)
    marked = (letters == ord(_MARK)).nonzero()[0]
    if len(marked) != len(nodes):
        raise InvalidInput("NodeNames", "no node has a name with a quote")
    letters[marked] = _DIGITS.take(scores)
    return bytes(written.replace(_MARK, b"%d" % MAX_SCORE))


def _json(value: Any, *, status: int = 200) -> Response:
    return _answer(msgspec.json.encode(value), status=status)


def _answer(body: bytes, *, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json")
