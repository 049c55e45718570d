"""Install or upgrade, stage by stage. Every step can be repeated, so an interrupted installation continues.

The order: definitions before anything that reads their kinds; roles before processes; the webhook before its
configuration, because the API server would refuse GPU pods that nobody answers for; and agents last, because a node
that offers cards before the webhook is called would run pods that asked for a GPU without one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from egpu.adapters.installation import Document
from egpu.apps.install.objects import Objects, by_stage, owned, path_of, shown
from egpu.apps.install.plan import outdated
from egpu.apps.install.readiness import Deadline, Progress, unestablished, unready, until_none, without_authority
from egpu_base.errors import Conflict

WEBHOOK: Final = "elastic-gpu-webhook"
_STAGES: Final = (
    "namespace and definitions",
    "accounts and roles",
    "admission policies and services",
    "controller, webhook, extender and dashboard",
    "webhook configurations",
    "agents and shims",
)


@dataclass(frozen=True)
class Done:
    """The objects that were written and removed."""

    applied: tuple[str, ...]
    removed: tuple[str, ...]


async def install(
    objects: Objects, documents: Sequence[Document], *, deadline: Deadline, progress: Progress, prune: bool
) -> Done:
    """Write all documents, wait until everything is ready, and with `prune` remove our objects of earlier versions.

    Raises Conflict if another program changed a field, Unavailable at the deadline, and the API server's errors. A
    repetition continues.
    """
    await _namespace_stays(objects, documents)
    for stage, members in by_stage(documents).items():
        progress(f"writing {_STAGES[stage]}")
        for document in members:
            await objects.apply(owned(document))
        await _settled(objects, stage, members, deadline, progress)
    progress("waiting for all pods")
    await until_none(partial(unready, objects, documents), deadline, what="not everything is ready")
    removed = await _pruned(objects, documents, progress) if prune else ()
    return Done(tuple(map(shown, documents)), removed)


async def _namespace_stays(objects: Objects, documents: Sequence[Document]) -> None:
    for document in documents:
        if document["kind"] in ("Namespace", "CustomResourceDefinition"):
            found = await objects.find(document)
            if found is not None and found["metadata"].get("deletionTimestamp"):
                raise Conflict(f"{shown(document)} is being deleted; finish that with egpu uninstall, then repeat this")


async def _settled(
    objects: Objects, stage: int, members: Sequence[Document], deadline: Deadline, progress: Progress
) -> None:
    """Wait for what the next stage needs."""
    kinds = {document["kind"] for document in members}
    if "CustomResourceDefinition" in kinds:
        progress("waiting for the definitions")
        await until_none(partial(unestablished, objects, members), deadline, what="the API server is not ready")
    if "Deployment" in kinds:
        progress("waiting for the webhook")
        webhook = [one for one in members if one["metadata"]["name"] == WEBHOOK]
        await until_none(partial(unready, objects, webhook), deadline, what="the webhook is not ready")
    if "MutatingWebhookConfiguration" in kinds:
        progress("waiting for the webhook's certificate")
        missing = partial(without_authority, objects, members)
        await until_none(missing, deadline, what="the API server does not trust the webhook yet")


async def _pruned(objects: Objects, documents: Sequence[Document], progress: Progress) -> tuple[str, ...]:
    """Remove what `egpu install` of another version wrote and this one does not have."""
    gone = await outdated(objects, documents)
    if gone:
        progress("removing objects of the earlier version")
    for document in gone:
        await objects.delete(path_of(document))
    return tuple(map(shown, gone))
