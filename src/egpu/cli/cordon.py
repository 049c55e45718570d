"""`egpu cordon NODE/INDEX` and `egpu uncordon`: a card takes nothing new, or does again. What is on it stays."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer

from egpu.adapters.kubernetes import Client
from egpu.api.objects import ElasticGPU, PhysicalGPU
from egpu.cli.components import Kubeconfig
from egpu.cli.output import note
from egpu.cli.snapshot import load_from
from egpu.errors import InvalidInput

CardName = Annotated[str, typer.Argument(help="The card: NODE/INDEX as `egpu get gpus` shows it, or its UUID.")]


def cordon(card: CardName, kubeconfig: Kubeconfig = None) -> None:
    """Keep everything new off one card, its node's others stay in use; what is on it stays."""
    _set(card, kubeconfig, cordoned=True)


def uncordon(card: CardName, kubeconfig: Kubeconfig = None) -> None:
    """Let a cordoned card take new work again."""
    _set(card, kubeconfig, cordoned=False)


def _set(card: str, kubeconfig: Kubeconfig, *, cordoned: bool) -> None:
    found = named_card(card, load_from(kubeconfig).gpus)

    async def write() -> None:
        async with Client.from_kubeconfig(kubeconfig) as client:
            patch = {"metadata": {"uid": found.uid}, "spec": {"unschedulable": cordoned or None}}
            await client.patch(ElasticGPU, found.name, patch)

    asyncio.run(write())
    note(f"card {card} takes {'nothing new' if cordoned else 'new work'}")


def named_card(name: str, gpus: Sequence[ElasticGPU]) -> ElasticGPU:
    """The card that people call so. Raises InvalidInput where there is none."""
    for gpu in gpus:
        card = gpu.spec.physical_gpu
        if card is not None and name in _names(gpu, card):
            return gpu
    raise InvalidInput("card", f"no card is called {name!r}; write NODE/INDEX, or its UUID: egpu get gpus -o wide")


def _names(gpu: ElasticGPU, card: PhysicalGPU) -> tuple[str, ...]:
    return f"{gpu.spec.node_name}/{card.index}", card.uuid, gpu.name
