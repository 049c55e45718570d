"""Output of `egpu install`, `upgrade` and `uninstall`: sentences for people, records for scripts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from egpu.cli.output import Format, note, say, show_value

if TYPE_CHECKING:
    from egpu.adapters.installation import Document
    from egpu.apps.install import Done, Plan, Removal, Survey, Trial

MAX_LISTED = 12
NEXT = (
    "next: egpu get gpus, egpu doctor, kubectl apply -f a pod with elasticgpu.io/gpu-core and elasticgpu.io/gpu-memory"
)


def show_survey(found: "Survey") -> None:
    """Print the cluster, for people."""
    where = f" ({found.platform})" if found.platform else ""
    say(f"cluster: Kubernetes {found.version}{where}, {found.nodes} nodes, {len(found.gpu_nodes)} with GPUs")
    for node in found.gpu_nodes[:MAX_LISTED]:
        driver = f", driver {node.driver}" if node.driver else ""
        say(f"  {node.name}: {node.kind} by {node.known_by}{driver}, {node.runtime or 'runtime unknown'}")
    if len(found.gpu_nodes) > MAX_LISTED:
        say(f"  and {len(found.gpu_nodes) - MAX_LISTED} more")
    if found.installer:
        version = f" {found.record.version}" if found.record is not None else ""
        say(f"installed: Elastic GPU{version}, by {found.installer}")


def show_plan(planned: "Plan", found: "Survey", output: Format) -> None:
    """Print the plan: what changes, then what is to be known."""
    if not output.for_people:
        show_value(_survey_record(found) | _plan_record(planned), output)
        return
    kept = len(planned.of("keep"))
    for what in ("create", "change", "remove"):
        if named := planned.of(what):
            more = f" and {len(named) - MAX_LISTED} more" if len(named) > MAX_LISTED else ""
            say(f"{what}: {', '.join(named[:MAX_LISTED])}{more}")
    if kept:
        say(f"{kept} objects stay as they are")
    for one in planned.notes:
        note(one, label="note:", style="yellow")


def _plan_record(planned: "Plan") -> dict[str, Any]:
    changes = {what: planned.of(what) for what in ("create", "change", "keep", "remove")}
    return {**changes, "obstacles": list(planned.obstacles), "notes": list(planned.notes)}


def _survey_record(found: "Survey") -> dict[str, Any]:
    nodes = [
        {"name": one.name, "knownBy": one.known_by, "served": one.served, "driver": one.driver, "runtime": one.runtime}
        for one in found.gpu_nodes
    ]
    return {
        "kubernetes": found.version,
        "platform": found.platform,
        "gpuNodes": nodes,
        "gpuOperator": found.operator,
        "rivals": {node: one.name for node, one in (found.rivals or {}).items()},
        "installer": found.installer,
    }


def show_done(
    done: "Done", found: "Survey", tried: "Sequence[Trial] | None", output: Format, *, waiting: Sequence[str]
) -> None:
    """Print what an installation did. `tried` None: no pod was wanted, or there is no GPU node. `waiting`: nodes that
    offer nothing yet."""
    if not output.for_people:
        results = [{"node": one.node, "model": one.model, "works": one.works, "said": one.said} for one in tried or ()]
        record = {"applied": list(done.applied), "removed": list(done.removed), "trials": results}
        record["waiting"] = list(waiting)
        show_value(_survey_record(found) | record, output)
        return
    say(f"installed: {len(done.applied)} objects, all pods are ready")
    if done.removed:
        say(f"removed, because this version has them no more: {', '.join(done.removed)}")
    for one in waiting:
        note(one, label="note:", style="yellow")
    if tried is not None and not tried:
        say("not tried: no agent has published a healthy card yet")
    if tried is None:
        say("not tried: --no-try, or no GPU node is there")
    for one in tried or ():
        state = "works" if one.works else "does not work: egpu doctor says why"
        say(f"tried a slice of {one.model} on {one.node}: {one.said}: {state}")
    say(NEXT)


def show_removal(
    wanted: "Removal", output: Format, *, would: "Sequence[Document]" = (), users: Sequence[str] = ()
) -> None:
    """Print what was removed; with `would` the objects that a run would remove, and the pods that have cards."""
    planned = [f"{one['kind']} {one['metadata']['name']}" for one in would]
    if not output.for_people:
        show_value(
            {"removed": wanted.removed, "notes": wanted.notes, "wouldRemove": planned, "podsWithCards": list(users)},
            output,
        )
        return
    if planned or users:
        say(f"would remove {len(planned)} objects: {', '.join(planned[:MAX_LISTED])}, …")
        if users:
            say(f"pods have cards, so --force is needed: {', '.join(users[:MAX_LISTED])}")
        return
    say(f"removed: {len(wanted.removed)} objects" if wanted.removed else "nothing was installed")
    for one in wanted.notes:
        note(one, label="note:", style="yellow")
    say("on each node, files stay in /var/lib/elasticgpu and /run/elasticgpu until you remove them")
