"""Commands score places by the saved job mix of the extender."""

from typing import Any

import pytest

from egpu.apps.extender.job_mix import ANNOTATION
from egpu.cli.snapshot import use_kept_mix
from egpu.core.placement.cache import SchedulerCache
from egpu.core.policies.learning import LearnedMix
from egpu.core.policies.shapes import Shape
from egpu_base.api.kubernetes import Lease
from egpu_base.api.objects import ObjectMeta
from egpu_base.errors import Refused


class Cluster:
    """A client with at most one Lease."""

    def __init__(self, lease: Lease | None) -> None:
        self._lease = lease

    async def find(self, kind: type[Lease], name: str, *, namespace: str) -> Lease | None:
        assert (kind, name, namespace) == (Lease, "elastic-gpu-extender", "elastic-gpu-system")
        return self._lease


class Forbidding:
    async def find(self, kind: type[Lease], name: str, *, namespace: str) -> Lease | None:
        raise Refused("leases is forbidden")


async def learned(client: Any) -> LearnedMix:
    cache = SchedulerCache()
    await use_kept_mix(client, cache)
    return cache.ranking.learned


async def test_the_kept_mix_is_used() -> None:
    mix = LearnedMix()
    mix.see(Shape(cards=1, core_milli=300))
    lease = Lease(metadata=ObjectMeta(name="elastic-gpu-extender", annotations={ANNOTATION: mix.dump()}))
    assert (await learned(Cluster(lease))).mix() == mix.mix()


@pytest.mark.parametrize("lease", [None, Lease(metadata=ObjectMeta(name="elastic-gpu-extender"))])
async def test_no_mix_was_kept(lease: Lease | None) -> None:
    assert (await learned(Cluster(lease))).arrivals == 0


async def test_an_unreadable_job_mix_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    corrupt = Lease(metadata=ObjectMeta(name="elastic-gpu-extender", annotations={ANNOTATION: "{"}))
    for client, reason in ((Cluster(corrupt), "stored job mix cannot be read"), (Forbidding(), "leases is forbidden")):
        assert (await learned(client)).arrivals == 0
        said = capsys.readouterr().err
        assert "priced without the extender's job mix" in said
        assert reason in said
