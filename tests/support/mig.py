"""Cards in MIG mode as agents publish them, of the simulator's models."""

from collections.abc import Sequence

from msgspec.structs import replace

from egpu.api.mig import InstancePlace, InstanceProfile, Mig
from egpu.api.objects import ElasticGPU
from egpu_sim.machines.machine import profiles
from support.objects import card


def mig_profiles(model: str) -> list[InstanceProfile]:
    return [
        InstanceProfile(
            name=each.name,
            compute=each.slices,
            memory_mib=each.memory_mib,
            size=each.size,
            starts=each.starts,
            most=each.instances,
        )
        for each in profiles()[model].mig
    ]


def mig_card(
    node: str,
    index: int = 0,
    *,
    model: str = "A100-40G",
    own: Sequence[InstancePlace] = (),
    others: Sequence[InstancePlace] = (),
    used: Sequence[InstancePlace] = (),
) -> ElasticGPU:
    """A card in MIG mode, and the instances on it."""
    made = card(node, index, memory_mib=profiles()[model].memory_mib, model=model)
    assert made.spec.physical_gpu is not None
    mig = Mig(profiles=mig_profiles(model), own=list(own), others=list(others), used=list(used))
    return replace(made, spec=replace(made.spec, physical_gpu=replace(made.spec.physical_gpu, mig=mig)))
