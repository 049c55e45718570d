"""The plan of an installation: what would change, what is in the way, and what to know. Pure but for `changes`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from egpu.adapters.installation import Document
from egpu.apps.install.objects import KINDS, OWNER, OWNER_LABEL, Objects, by_stage, owned, path_of, shown
from egpu.apps.install.survey import OLDEST_KUBERNETES, Survey
from egpu.core.gpu_nodes import LABEL_ONE
from egpu.core.rivals import by_rival
from egpu_base.errors import NotFound, Refused

Doing = Literal["install", "upgrade"]
MAX_NAMED: Final = 5


@dataclass(frozen=True)
class Change:
    """One object: `what` is create, change, keep or remove."""

    what: Literal["create", "change", "keep", "remove"]
    document: Document


@dataclass(frozen=True)
class Plan:
    """`obstacles` make an installation impossible; `notes` are to be read."""

    changes: tuple[Change, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...]

    def of(self, what: str) -> list[str]:
        """Return the objects with this change, for people."""
        return [shown(one.document) for one in self.changes if one.what == what]


def obstacles(found: Survey, doing: Doing) -> Iterator[str]:
    """Yield the reasons why nothing can be installed now, each with what to do."""
    oldest = ".".join(map(str, OLDEST_KUBERNETES))
    if not found.new_enough:
        yield f"Kubernetes {found.version} has no admission policies: upgrade it to {oldest} or newer"
    if found.rights:
        yield f"you may not {some(found.rights)}: use a kubeconfig with the role cluster-admin"
    if found.installer == "Helm":
        yield f"Helm installed Elastic GPU here: {'upgrade it with helm upgrade' if doing == 'upgrade' else 'use helm'}"
    if doing == "upgrade" and not found.installer:
        yield "nothing is installed in this namespace: use egpu install, or name the namespace"


def notes(found: Survey) -> Iterator[str]:
    """Yield what an administrator should know before or after an installation."""
    if not found.gpu_nodes:
        yield f"no node has a label of NVIDIA's cards, or cards: label one, {LABEL_ONE}"
    if found.unserved:
        seen = some([f"{node.name} ({node.known_by})" for node in found.unserved])
        if found.discovery:
            yield f"no agent runs on {seen}: {LABEL_ONE}, or egpu install --label-nodes"
        else:
            yield f"no agent runs on {seen}: agent.nodeSelector or agent.affinity of your values leaves them out"
    for rival, nodes in by_rival(found.contested).items():
        yield f"{rival.conflict(some(nodes))}. The agent offers nothing there until you end this: {rival.mend}"
    if found.operator:
        yield f"NVIDIA's GPU Operator is here ({found.operator})"
    if found.unadmitted:
        again = "delete them and create them again"
        yield f"pods wait for a GPU that our webhook has not seen: {some(found.unadmitted)}. After this, {again}"
    if found.platform:
        yield f"this is {found.platform}: docs/operate/managed-clusters.md has what it needs"


async def plan(objects: Objects, documents: Sequence[Document], found: Survey, *, doing: Doing) -> Plan:
    """Return the plan for these documents. Changes nothing. Raises the API server's errors."""
    changes = [await _change(objects, one) for stage in by_stage(documents).values() for one in stage]
    gone = await outdated(objects, documents) if doing == "upgrade" else []
    changes += [Change("remove", one) for one in gone]
    return Plan(tuple(changes), tuple(obstacles(found, doing)), tuple(notes(found)))


async def _change(objects: Objects, document: Document) -> Change:
    present = await objects.find(document)
    if present is None:
        return Change("create", document)
    try:
        wanted = await objects.apply(owned(document), dry_run=True)
    except (NotFound, Refused):
        return Change("change", document)
    return Change("keep" if _content(wanted) == _content(present) else "change", document)


def _content(document: Document) -> dict[str, Any]:
    """Return an object without what the API server keeps about it."""
    metadata = {key: document["metadata"].get(key) for key in ("labels", "annotations")}
    return {key: value for key, value in document.items() if key not in ("metadata", "status")} | metadata


async def outdated(objects: Objects, documents: Sequence[Document]) -> list[Document]:
    """Return objects that `egpu install` wrote and that are not among the documents, in the order of their removal."""
    wanted = {path_of(one) for one in documents}
    found: list[Document] = []
    for name, kind in sorted(KINDS.items(), key=lambda one: -one[1].stage):
        present = await objects.all(kind, labels=f"{OWNER_LABEL}={OWNER}")
        named = [{**one, "apiVersion": kind.api_version, "kind": name} for one in present]
        found += [one for one in named if path_of(one) not in wanted]
    return found


def some(texts: Sequence[str]) -> str:
    """Return the texts in one sentence, the first few of many."""
    more = f" and {len(texts) - MAX_NAMED} more" if len(texts) > MAX_NAMED else ""
    return ", ".join(texts[:MAX_NAMED]) + more
