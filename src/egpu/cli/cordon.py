"""`egpu cordon NODE/INDEX` and `egpu uncordon`: stop or allow new slices on a card. Running slices stay."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from egpu.api.objects import ElasticGPU, PhysicalGPU
from egpu.cli.components import Kubeconfig
from egpu.cli.output import note
from egpu.cli.snapshot import load_from
from egpu_base.errors import InvalidInput
from egpu_base.kubernetes import Client

CardName = Annotated[str, typer.Argument(help="Card: NODE/INDEX as in `egpu get gpus`, or its UUID.")]


def cordon(card: CardName, kubeconfig: Kubeconfig = None) -> None:
    """Stop new slices on one card. Running slices and the node's other cards stay in use."""
    _set(card, kubeconfig, cordoned=True)


def uncordon(card: CardName, kubeconfig: Kubeconfig = None) -> None:
    """Allow new slices on a cordoned card again."""
    _set(card, kubeconfig, cordoned=False)


def _set(card: str, kubeconfig: Kubeconfig, *, cordoned: bool) -> None:
    found = named_card(card, load_from(kubeconfig).gpus)

    async def write() -> None:
        async with Client.from_kubeconfig(kubeconfig) as client:
            patch = {"metadata": {"uid": found.uid}, "spec": {"unschedulable": cordoned or None}}
            await client.patch(ElasticGPU, found.name, patch)

    asyncio.run(write())
    note(f"card {card} {'is cordoned: it gets no new slices' if cordoned else 'gets new slices again'}")


def named_card(name: str, gpus: Sequence[ElasticGPU]) -> ElasticGPU:
    """Return the card with this name. Raises InvalidInput for an unknown name."""
    for gpu in gpus:
        card = gpu.spec.physical_gpu
        if card is not None and name in _names(gpu, card):
            return gpu
    raise InvalidInput("card", f"no card is called {name!r}. Use NODE/INDEX or a UUID of `egpu get gpus -o wide`")


def _names(gpu: ElasticGPU, card: PhysicalGPU) -> tuple[str, ...]:
    return f"{gpu.spec.node_name}/{card.index}", card.uuid, gpu.name
