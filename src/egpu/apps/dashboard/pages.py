"""The values of each page and of its live parts, from the dashboard's knowledge and the user's access."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nsmallest
from typing import Any, Final

from egpu.api.objects import ElasticGPUClaim
from egpu.apps.dashboard import drawing
from egpu.apps.dashboard.access import Access
from egpu.apps.dashboard.explaining import Explanations
from egpu.apps.dashboard.fitting import KINDS, Form, would_fit
from egpu.apps.dashboard.history import SERIES
from egpu.apps.dashboard.knowledge import Knowledge
from egpu.apps.dashboard.visible import Seen, SeenNode, SeenView
from egpu.core.bill import Bill, bill_of, own_remedy, summed
from egpu.core.bill.lines import SECONDS_PER_HOUR
from egpu.core.explain import Explanation
from egpu.core.placement.card_usage import CardKey
from egpu.core.view import CardView, ClusterView, NodeView
from egpu_base.errors import MissingExtra, NotFound

CARDS_A_PAGE: Final = 128
"""Cards on one page of the map: an update stays below 50 kB on the wire."""
ROWS: Final = 100
"""Rows of a table; a search finds the others."""
REASONS: Final = 20
"""Nodes whose refusal is shown card by card; the others are counted by reason."""
SHAPES: Final = 20
NAMESPACE: Final = "namespace"
"""The default grouping of the bill, if no label is chosen."""

Query = Mapping[str, str]
Values = dict[str, Any]


@dataclass(frozen=True)
class Looking:
    """A user's request: what the user may list, asks for, and sees of the cluster."""

    access: Access
    query: Query
    view: ClusterView | SeenView

    @cached_property
    def search(self) -> str:
        """The searched text, in lower case."""
        return " ".join(self.query.get("q", "").lower().split())[:256]

    def has(self, *texts: str) -> bool:
        """Return whether one of the texts contains the searched text."""
        return any(self.search in text.lower() for text in texts)


class Pages:
    """All pages. `parts`: each live part by name, with a template of its own."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._known = knowledge
        self._seen = Seen()
        self._explanations = Explanations(knowledge.scene)
        self.parts: Mapping[str, Callable[[Looking], Values]] = {
            "summary": self._summary,
            "map": self._map,
            "pending": self._pending,
            "workloads": self._workloads,
            "bill": self._bill,
            "card": self._card,
            "pod": self._pod,
        }

    def looking(self, access: Access, query: Query) -> Looking:
        return Looking(access, query, self._seen.of(self._known.view, self._known.claims, access))

    # --- live parts -------------------------------------------------------------------------------------------------

    def _summary(self, one: Looking) -> Values:
        totals = one.view.totals
        known = totals.told and one.access.pods is None
        return {
            "totals": totals,
            "nodes": len(one.view.nodes),
            "not_ready": sum(not node.ready for node in one.view.nodes),
            "core_used": 100 * totals.core_used_ratio if known else None,
            "memory_used_mib": totals.memory_used_bytes >> 20 if known else None,
            "pending": len(one.view.pending),
            "claims": one.view.claims,
            "wasted": totals.wasted,
            "silent": self._known.sources.silent if one.access.nodes else 0,
            "asked": self._known.sources.asked,
            "problems": one.view.problems,
        }

    def _map(self, one: Looking) -> Values:
        search = one.search
        nodes = [node for node in one.view.nodes if node.card_count and (not search or search in node.text)]
        pages = _pages(nodes)
        page = min(max(1, _number(one.query.get("page", "1"))), len(pages))
        shown = pages[page - 1]
        hues = drawing.colours(one.view.namespaces)
        there = sorted(frozenset[str]().union(*(node.namespaces for node in shown)))
        return {
            "nodes": [(node, [self._drawn(card, hues) for card in node.cards]) for node in shown],
            "found": len(nodes),
            "page": page,
            "pages": len(pages),
            "q": one.query.get("q", ""),
            "legend": [(name, hues[name]) for name in there],
            "may": one.access.cards,
        }

    def _pending(self, one: Looking) -> Values:
        return {"pending": one.view.pending[:ROWS], "more": max(0, len(one.view.pending) - ROWS)}

    def _workloads(self, one: Looking) -> Values:
        hues = drawing.colours(one.view.namespaces)
        slices = [
            each for each in one.view.slices()
            if each.name and (not one.search or one.has(f"{each.namespace}/{each.name}", each.node, each.provisioner))
        ]  # fmt: skip
        claims = [
            claim for claim in sorted(self._known.claims, key=lambda claim: claim.key)
            if one.access.claim(claim.namespace)
            and one.has(claim.key, _phase(claim), claim.spec.class_name)
        ]  # fmt: skip
        pending = [pod for pod in one.view.pending if one.has(f"{pod.namespace}/{pod.name}", pod.reason)]
        first = nsmallest(ROWS, slices, key=lambda each: (each.namespace, each.name, each.container, each.index))
        return {
            "slices": [(each, hues[each.namespace], each.wasted) for each in first],
            "more_slices": max(0, len(slices) - ROWS),
            "claims": [(claim, _phase(claim), hues.get(claim.namespace, "ns-none")) for claim in claims[:ROWS]],
            "more_claims": max(0, len(claims) - ROWS),
            "pending": pending[:ROWS],
            "more_pending": max(0, len(pending) - ROWS),
            "q": one.query.get("q", ""),
        }

    def _bill(self, one: Looking) -> Values:
        """Return the bill of what the user sees. Remedies name other users' pods and nodes, so only users who may list
        everything get them."""
        by = one.query.get("by", "").strip()[:256] or NAMESPACE
        remedy = self._known.advice.remedy if one.access.everything else own_remedy
        lines = [
            line for line in bill_of(one.view).lines
            if not one.search or one.has(f"{line.namespace}/{line.subject.name}", line.cause, line.label(by))
        ]  # fmt: skip
        shown = Bill(tuple(lines))
        sums = list(summed(shown, lambda line: line.namespace if by == NAMESPACE else line.label(by)).items())
        return {
            "bill": shown,
            "lines": [(line, remedy(line)) for line in lines[:ROWS]],
            "more_lines": max(0, len(lines) - ROWS),
            "sums": sums[:ROWS],
            "more_sums": max(0, len(sums) - ROWS),
            "hour": SECONDS_PER_HOUR,
            "by": by,
            "q": one.query.get("q", ""),
            "known": one.view.totals.told,
        }

    def _card(self, one: Looking) -> Values:
        hues = drawing.colours(one.view.namespaces)
        card = self.card(one)
        return {
            "card": card,
            "drawn": self._drawn(card, hues),
            "slices": [(each, hues[each.namespace], each.wasted, drawing.slice_name(each)) for each in card.slices],
        }

    def _pod(self, one: Looking) -> Values:
        namespace, name = one.query.get("namespace", ""), one.query.get("name", "")
        pod = self._known.pods.get(name, namespace) if one.access.pod(namespace) else None
        if pod is None:
            raise NotFound(f"pod {namespace}/{name} does not exist, or you may not list it")
        slices = [
            each
            for each in one.view.slices()
            if any((user.namespace, user.pod) == (namespace, name) for user in each.users)
        ]
        explanation = self._explanations.of(pod) if one.access.nodes and one.access.cards else None
        return {
            "pod": pod,
            "waits": next((each for each in one.view.pending if each.uid == pod.uid), None),
            "slices": [(each, each.wasted) for each in slices],
            **_explained(explanation, one.access),
        }

    # --- pages that are not live ------------------------------------------------------------------------------------

    def fit(self, one: Looking) -> Values:
        """Return the form and its answer."""
        form = Form.read(one.query)
        values: Values = {"form": form, "kinds": KINDS, "may": one.access.cards and one.access.nodes}
        if not values["may"]:
            return {**values, "answer": None, **_explained(None, one.access)}
        largest = int(self._known.cache.ledger.memory_mib.max(initial=0)) or None
        try:
            answer = would_fit(form, self._known.scene, largest_mib=largest)
        except MissingExtra as error:
            answer = None
            values["problem"] = str(error)
        return {**values, "answer": answer, **_explained(answer and answer.explanation, one.access)}

    def policy(self, one: Looking) -> Values:
        """Return the policy that chooses places."""
        mix = self._known.cache.ranking.learned
        shapes = mix.mix()
        popular = sorted(shapes.weights.items(), key=lambda pair: -pair[1])[:SHAPES]
        return {
            "policies": self._known.policies,
            "arrivals": mix.arrivals,
            "enough": mix.enough,
            "shapes": [(shape, 100 * weight / shapes.total) for shape, weight in popular],
            "others": max(0, len(shapes.weights) - SHAPES),
            "may": one.access.nodes and one.access.cards and one.access.pods is None,
        }

    def history(self, one: Looking) -> Values:
        """Return a card's history for JSON: `times`, `names`, and `series` of percentages. Use is left out for users
        who may not list all pods."""
        card = self.card(one)
        times, series = self._known.history.of(CardKey(card.node, card.card.uuid))
        shown = [place for place, name in enumerate(SERIES) if one.access.pods is None or name.endswith("given")]
        return {
            "times": times,
            "names": [SERIES[place] for place in shown],
            "series": [series[place] for place in shown],
        }

    def card(self, one: Looking) -> CardView:
        """Return the requested card. Raises NotFound."""
        node, uuid = one.query.get("node", ""), one.query.get("uuid", "")
        found = one.view.node(node)
        for card in found.cards if found is not None else ():
            if card.card.uuid == uuid:
                return card
        raise NotFound(f"card {uuid} on node {node} does not exist, or you may not list cards")

    def _drawn(self, card: CardView, hues: Mapping[str, str]) -> Values:
        return {
            "card": card,
            "core": drawing.core_bars(card, hues),
            "memory": drawing.memory_bars(card, hues),
            "label": drawing.in_words(card),
        }


def _explained(found: Explanation | None, access: Access) -> Values:
    """Return an explanation's values. Only users who may list all pods see whom it would evict."""
    if found is None:
        return {"explanation": None, "refusals": (), "more_refusals": []}
    if access.pods is not None:
        found = replace(found, preemption="")
    rest = Counter(refusal.reason for refusal in found.refusals[REASONS:])
    return {"explanation": found, "refusals": found.refusals[:REASONS], "more_refusals": rest.most_common(REASONS)}


def _pages(nodes: Sequence[NodeView | SeenNode]) -> list[list[NodeView | SeenNode]]:
    """Divide into pages of whole nodes, with CARDS_A_PAGE cards or one node that has more; at least one page."""
    pages: list[list[NodeView | SeenNode]] = [[]]
    cards = 0
    for node in nodes:
        if pages[-1] and cards + node.card_count > CARDS_A_PAGE:
            pages.append([])
            cards = 0
        pages[-1].append(node)
        cards += node.card_count
    return pages


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _phase(claim: ElasticGPUClaim) -> str:
    return claim.status.phase or "Pending"
