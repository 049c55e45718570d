"""`egpu mig plan`: the mix of a cluster's pods and claims, and of a file."""

from pathlib import Path

import pytest

from egpu.api import names
from egpu.cli.mig import asked_in, cards_of, read_mix
from egpu.cli.snapshot import snapshot_of
from egpu.core.mig_plan import InstanceAsked
from egpu_base.errors import InvalidInput
from support.mig import mig_card
from support.objects import card, claim, claim_pod, container, ended, gpu_class, pod, slice_pod


def test_pods_that_have_not_ended_and_claims_make_the_mix() -> None:
    one = {names.MIG_PREFIX + "1g.5gb": 1}
    snapshot = snapshot_of(
        [],
        [mig_card("n0", 1), card("n0", 0)],
        [gpu_class("cut", names.MIG, wait=True)],
        [claim("c", {names.GPU_CORE: 14, names.GPU_MEMORY: 4096}, "cut")],
        [
            pod("waits", container("app", one)),
            ended(pod("ended", container("app", one))),
            claim_pod("uses", "c"),
            slice_pod("other"),
        ],
    )
    assert list(cards_of(snapshot)) == ["n0/1"]
    assert list(asked_in(snapshot)) == [InstanceAsked("1g.5gb"), InstanceAsked(core=14, memory_mib=4096)]


def test_a_mix_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mix.json"
    file.write_text('{"1g.5gb": 2, "7g.40gb": 0}')
    assert read_mix(file) == [InstanceAsked("1g.5gb")] * 2
    for wrong in ('{"1g.5gb": -1}', '{"1g.5gb": 10001}', "[]"):
        file.write_text(wrong)
        with pytest.raises(InvalidInput):
            read_mix(file)
    with pytest.raises(InvalidInput):
        read_mix(tmp_path / "absent")
