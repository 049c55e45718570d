"""The cost of a pod with a GPU in the extender and in the webhook: filter, prioritize and bind over real HTTP.

    world        a made-up cluster, half full, and its new pods
    listing      the order in which kube-scheduler names nodes
    api_server   answers the extender at once
    idle_server  the floor: the same bytes through an idle server
    processes    the measured processes
    caller       asks as kube-scheduler does, and measures
    burst        a great many pods at once
    claims       ResourceClaims beside bindings

Latency is the caller's waiting time. Processor time is that of the process; a loaded machine disturbs it less. Every
figure stands beside the floor of the same run.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from benchmarks.extender import burst, claims
from benchmarks.extender.caller import Asked, Caller, memory_mib, processor_seconds
from benchmarks.extender.listing import Listing
from benchmarks.extender.processes import component, make_certificates, said_its_port
from benchmarks.extender.world import Json, arrivals, bare, bind_body, filter_body, node_name, review_body
from benchmarks.report import Report

SIZES: Final = (1_000, 5_000, 15_000)
PODS: Final = 400
WARM_UP: Final = 40
"""Pods before the first that counts: the policy computes its first prices, and meets shapes for the first time."""
GOAL_P99_MS: Final = {1_000: 2.0, 5_000: 4.0, 15_000: 12.0}
"""The goal for filter and prioritize together."""
GOAL_EXTENDER_MS: Final = 3.0
GOAL_WEBHOOK_MS: Final = 1.5
GOAL_MEMORY_MIB: Final = 500.0
GOAL_CLAIMS_PER_BIND: Final = 0.9
Exchanges = Mapping[str, list[tuple[bytes, Asked]]]
"""Requests and answers by verb."""


def run(report: Report) -> dict[str, Any]:
    """Measure, print, and return the figures."""
    found: dict[str, Any] = {}
    for nodes in SIZES[:1] if report.options.quick else SIZES:
        with tempfile.TemporaryDirectory(prefix="egpu-benchmark-") as name:
            folder = Path(name)
            make_certificates(folder)
            found[str(nodes)] = _size(report, nodes, folder)
            if nodes == SIZES[0] and not report.options.quick:
                found["burst"] = _burst(report, nodes, folder)._asdict()
                found["claims"] = _claims(report, nodes, folder)
    return found


def _size(report: Report, nodes: int, folder: Path) -> dict[str, Any]:
    report.progress(f"{nodes} nodes: {PODS} pods")
    pods = list(arrivals(PODS + WARM_UP))
    with said_its_port("benchmarks.extender.api_server", str(nodes), str(folder)) as server:
        with component("extender", folder, server.port) as extender:
            began, spent = time.perf_counter(), processor_seconds(extender.pid)
            with Caller(server.port, folder, server.pid) as api, Caller(extender.port, folder, extender.pid) as asked:
                exchanges = _schedule(api, asked, pods[:WARM_UP], nodes)
                time.sleep(2)  # prices are computed beside it
                began, spent = time.perf_counter(), processor_seconds(extender.pid)
                exchanges = _schedule(api, asked, pods[WARM_UP:], nodes)
            whole = (processor_seconds(extender.pid) - spent) / PODS
            rate, memory = PODS / (time.perf_counter() - began), memory_mib(extender.pid)
        with component("webhook", folder, server.port) as webhook, Caller(webhook.port, folder, webhook.pid) as asked:
            _review(asked, pods[:WARM_UP])
            reviews = _review(asked, pods[WARM_UP:])
    scheduling, admission = _floor(folder, exchanges), _floor(folder, reviews)
    _table(report, f"{nodes} nodes of 8 cards, {PODS} pods", {**exchanges, **reviews}, {**scheduling, **admission})
    figures = _figures({**exchanges, **reviews}, {**scheduling, **admission})
    figures |= {"extender_ms": whole * 1e3, "pods_per_second": rate, "memory_mib": memory}
    _verdicts(report, nodes, figures, whole * 1e3)
    return figures


def _burst(report: Report, nodes: int, folder: Path) -> burst.Burst:
    report.progress(f"{nodes} nodes: {burst.PODS} pods at once")
    found = burst.run(nodes, folder)
    what, most = f"{nodes} nodes: a burst of {burst.PODS} pods", burst.GOAL_SLOWEST_SECONDS
    placed, slowest = f"{found.placed} ({found.again} times again)", found.slowest_seconds
    report.verdict(f"{what}, placed", placed, "all of them", found.placed == burst.PODS)
    report.verdict(f"{what}, slowest request", f"{slowest:.2f} s", f"at most {most:g} s", slowest <= most)
    return found


def _claims(report: Report, nodes: int, folder: Path) -> dict[str, Any]:
    report.progress(f"{nodes} nodes: {claims.COUNT} ResourceClaims, and as many bindings")
    found = claims.run(nodes, folder)
    columns = ("", "a second", "processor ms of the extender", "processor ms of the webhook")
    report.table(f"{nodes} nodes: claims and bindings", columns, [(key, *one) for key, one in found._asdict().items()])
    ratio = found.claims.per_second / found.binds.per_second
    what = f"{nodes} nodes: claims allocated per binding in the same time"
    report.verdict(what, f"{ratio:.2f}", f"at least {GOAL_CLAIMS_PER_BIND:g}", ratio >= GOAL_CLAIMS_PER_BIND)
    return {key: one._asdict() for key, one in found._asdict().items()}


def _schedule(api: Caller, extender: Caller, pods: Sequence[Json], nodes: int) -> Exchanges:
    """Filter, prioritize and bind, one pod after the other, as kube-scheduler asks."""
    listing = Listing([node_name(number) for number in range(nodes)])
    done: dict[str, list[tuple[bytes, Asked]]] = {"filter": [], "prioritize": [], "bind": []}

    def ask(verb: str, body: bytes) -> Any:
        answer = extender.post(f"/{verb}", body)
        done[verb].append((body, answer))
        return msgspec.json.decode(answer.body)

    for sent in pods:
        made = api.post("/api/v1/namespaces/default/pods", msgspec.json.encode(sent))
        pod = msgspec.json.decode(made.body)
        fits = ask("filter", filter_body(pod, listing.next()))
        if fits["Error"] or not fits["NodeNames"]:
            raise RuntimeError(f"{pod['metadata']['name']} fits nowhere: {fits['Error']}")
        scores = ask("prioritize", filter_body(pod, fits["NodeNames"]))
        best = max(scores, key=lambda one: one["Score"])["Host"]
        if error := ask("bind", bind_body(pod, best))["Error"]:
            raise RuntimeError(error)
    return done


def _review(webhook: Caller, pods: Sequence[Json]) -> Exchanges:
    """Ask about the creation of each pod, as the API server does: to change it, then to check it."""
    done: dict[str, list[tuple[bytes, Asked]]] = {"mutate": [], "validate": []}
    for number, pod in enumerate(pods):
        for verb, sent in (("mutate", bare(pod)), ("validate", pod)):
            body = review_body(sent, f"review-{number}")
            answer = webhook.post(f"/{verb}", body)
            if not msgspec.json.decode(answer.body)["response"]["allowed"]:
                raise RuntimeError(f"{verb}: {answer.body!r}")
            done[verb].append((body, answer))
    return done


def _floor(folder: Path, exchanges: Exchanges) -> Exchanges:
    """Send the same requests to the idle server, with answers of the median length."""
    for verb, made in exchanges.items():
        middle = sorted(made, key=lambda one: len(one[1].body))[len(made) // 2]
        (folder / f"{verb}.answer").write_bytes(middle[1].body)
    floor: dict[str, list[tuple[bytes, Asked]]] = {verb: [] for verb in exchanges}
    idle_server = said_its_port("benchmarks.extender.idle_server", str(folder))
    with idle_server as idle, Caller(idle.port, folder, idle.pid) as asked:
        for turn in zip(*exchanges.values(), strict=True):
            for verb, (body, _) in zip(exchanges, turn, strict=True):
                floor[verb].append((body, asked.post(f"/{verb}", body)))
    return floor


def _figures(exchanges: Exchanges, floor: Exchanges) -> dict[str, Any]:
    both = {verb: [answer for _, answer in made] for verb, made in exchanges.items()}
    idle = {verb: [answer for _, answer in made] for verb, made in floor.items()}
    found: dict[str, Any] = {}
    for verb, answers in both.items():
        found[verb] = _summary(answers) | {f"floor_{key}": value for key, value in _summary(idle[verb]).items()}
    for which, answers in (("", both), ("floor_", idle)):
        together = [
            one.seconds + two.seconds for one, two in zip(answers["filter"], answers["prioritize"], strict=True)
        ]
        found[f"{which}filter_and_prioritize_p99_ms"] = float(np.percentile(together, 99)) * 1e3
        found[f"{which}webhook_ms"] = sum(_summary(answers[verb])["processor_ms"] for verb in ("mutate", "validate"))
    return found


def _summary(answers: Sequence[Asked]) -> dict[str, float]:
    p50, p99 = np.percentile([one.seconds for one in answers], [50, 99])
    spent = float(np.mean([one.processor_seconds for one in answers]))
    return {"p50_ms": float(p50) * 1e3, "p99_ms": float(p99) * 1e3, "processor_ms": spent * 1e3}


def _table(report: Report, title: str, exchanges: Exchanges, floor: Exchanges) -> None:
    columns = ("", "p50 ms", "p99 ms", "processor ms", "floor: p50 ms", "p99 ms", "processor ms")
    rows = [
        (verb, *_summary([one for _, one in made]).values(), *_summary([one for _, one in floor[verb]]).values())
        for verb, made in exchanges.items()
    ]
    report.table(title, columns, rows)


def _verdicts(report: Report, nodes: int, figures: Mapping[str, Any], extender_ms: float) -> None:
    """Report the goals, and the figures without a goal beside them."""
    p99, floor = figures["filter_and_prioritize_p99_ms"], figures["floor_filter_and_prioritize_p99_ms"]
    where = f"{nodes} nodes: "
    report.table(
        where + "in all",
        ("", "figure"),
        (
            ("filter + prioritize, p99 ms", p99),
            ("the same, floor", floor),
            ("processor time of the extender, ms a pod", extender_ms),
            ("processor time of the webhook, ms a pod", figures["webhook_ms"]),
            ("the same, floor", figures["floor_webhook_ms"]),
            ("pods a second, one after the other", figures["pods_per_second"]),
            ("memory of the extender, MiB", figures["memory_mib"]),
        ),
    )
    goal = GOAL_P99_MS[nodes]
    report.verdict(where + "filter + prioritize, p99", f"{p99:.2f} ms", f"at most {goal:g} ms", p99 <= goal)
    if nodes == SIZES[0]:
        for what, found, most in (
            ("extender", extender_ms, GOAL_EXTENDER_MS),
            ("webhook", figures["webhook_ms"], GOAL_WEBHOOK_MS),
        ):
            goal_text = f"at most {most:g} ms"
            report.verdict(f"{where}processor time of the {what} a pod", f"{found:.2f} ms", goal_text, found <= most)
    if nodes == SIZES[-1]:
        memory = figures["memory_mib"]
        goal_text = f"at most {GOAL_MEMORY_MIB:g} MiB"
        report.verdict(f"{where}memory of the extender", f"{memory:.0f} MiB", goal_text, memory <= GOAL_MEMORY_MIB)
