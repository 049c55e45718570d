"""`egpu mig plan`: a plan of MIG instances for existing pods and claims, or for a job mix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from egpu.api import names
from egpu.api.allocation import ContainerDemand
from egpu.api.mig import Mig
from egpu.api.vocabularies import profile_of
from egpu.cli.components import Kubeconfig
from egpu.cli.examples import epilog
from egpu.cli.output import Format, Table, note, show, show_value
from egpu.cli.snapshot import Snapshot, load_from
from egpu.core.mig_plan import GeometryPlan, InstanceAsked
from egpu.core.mig_plan import plan as plan_of
from egpu.core.placement.published import is_card
from egpu_base.errors import InvalidDemand, InvalidInput

MAX_ASKED = 10_000
"""The most instances of a job mix."""

mig = typer.Typer(no_args_is_help=True, help="Plan how to cut cards in MIG mode into instances.")


@mig.callback()
def of_cards() -> None:
    """Plan how to cut cards in MIG mode into instances."""


@mig.command(epilog=epilog("mig plan"))
def plan(
    kubeconfig: Kubeconfig = None,
    mix: Annotated[
        Path | None,
        typer.Option(
            help='JSON file of instances, such as {"1g.10gb": 5, "3g.40gb": 2}. Default: what pods and claims ask for.'
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("-o", "--output", metavar="FORMAT", help="table, json or yaml.")
    ] = Format.TABLE,
) -> None:
    """Propose MIG instances that serve all pods and claims, as if the cards were empty. No card is changed."""
    snapshot = load_from(kubeconfig)
    found = plan_of(cards_of(snapshot), read_mix(mix) if mix is not None else list(asked_in(snapshot)))
    if not output.for_people:
        show_value(msgspec.to_builtins(found), output)
        return
    show(_table(found), output, empty="no card is in MIG mode. Enable it on the node: nvidia-smi -i INDEX -mig 1")
    for what, count in found.left.items():
        note(f"no room for {count} of {what}", label="left:", style="yellow")


def cards_of(snapshot: Snapshot) -> dict[str, Mig]:
    """Return the cards in MIG mode by NODE/INDEX."""
    cards = [gpu for gpu in snapshot.gpus if is_card(gpu)]
    found = [(gpu.spec.node_name, gpu.spec.physical_gpu) for gpu in cards]
    return {
        f"{node}/{card.index}": card.mig
        for node, card in sorted(found, key=lambda one: (one[0], one[1].index if one[1] else 0))
        if card is not None and card.mig is not None
    }


def asked_in(snapshot: Snapshot) -> Iterator[InstanceAsked]:
    """Yield the instances that unfinished pods without claims, and claims, ask for."""
    for pod in snapshot.pods:
        if pod.finished:
            continue
        try:
            demands = snapshot.cache.request(pod).demand.containers
        except InvalidDemand:
            continue
        yield from (_asked(one) for one in demands.values() if one.provisioner == names.MIG and not one.claim)
    for claim in snapshot.claims:
        try:
            demands = snapshot.cache.claim_request(claim).demand.containers
        except InvalidDemand:
            continue
        yield from (_asked(one) for one in demands.values() if one.provisioner == names.MIG)


def read_mix(path: Path) -> list[InstanceAsked]:
    """Read a job mix: the number of instances of each profile. Raises InvalidInput."""
    try:
        counts = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInput("mix", f"{path}: {error}") from error
    if any(count < 0 for count in counts.values()) or sum(counts.values()) > MAX_ASKED:
        raise InvalidInput("mix", f"{path}: a count is negative, or the sum is above {MAX_ASKED}")
    return [InstanceAsked(profile) for profile, count in counts.items() for _ in range(count)]


def _asked(demand: ContainerDemand) -> InstanceAsked:
    return InstanceAsked(profile_of(demand.vocabulary), demand.core, demand.memory_mib)


def _table(found: GeometryPlan) -> Table:
    table = Table(("card", "instances"))
    for card, places in found.cards.items():
        table.add([card, ", ".join(map(str, places)) or "none"], {"card": card, "instances": list(map(str, places))})
    return table
