"""What parking would have placed: pods of a trace that are idle at times share the room of their cards."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from egpu.api import names
from egpu.api.allocation import CardShare, ContainerAllocation, ContainerDemand, PodAllocation, PodDemand
from egpu.cli.app import app
from egpu.core.placement.cards import Card, NodeCards
from egpu.core.placement.fit import fits
from egpu.core.placement.ledger import Holder, Ledger
from egpu.core.placement.requests import Request
from egpu.core.policies.fleet import Fleet, Placement
from egpu.core.policies.registry import NAMES
from egpu.core.policies.shapes import Machine, Mix, Shape
from egpu.core.replay.parking import contended_percent, sharing
from egpu.core.replay.run import run
from egpu.core.replay.workload import Workload
from egpu_base.errors import InvalidInput

GIB = 1024
CARD = Machine("node", 1_000_000, 4000 * GIB, 1, "A100", 80 * GIB)
NOTEBOOK = Shape(cpu_milli=1000, ram_mib=GIB, cards=1, core_milli=100, card_memory_mib=60 * GIB)


def placed(policy: str, pods: list[Shape], machine: Machine = CARD) -> int:
    workload = Workload(pods, np.arange(len(pods)), np.arange(1))
    outcome = run(policy, [machine], workload, Mix.of(pods), clock=lambda: 0.0, keep_placements=True)
    return sum(place is not None for place in outcome.placements.values())


@pytest.mark.parametrize("policy", NAMES)
def test_ten_notebooks_of_sixty_on_a_card_of_eighty(policy: str) -> None:
    assert placed(policy, [NOTEBOOK] * 10) == 1
    assert placed(policy, sharing([NOTEBOOK] * 10, [90] * 10, 3)) == 10


def test_who_shares_room() -> None:
    whole = Shape(cards=1, core_milli=1000, card_memory_mib=60 * GIB)
    unknown = Shape(cards=1, core_milli=100)
    several = Shape(cards=2, core_milli=100, card_memory_mib=60 * GIB)
    pods = [NOTEBOOK, NOTEBOOK, whole, unknown, several]
    first, *others = sharing(pods, [80, 0, 80, 80, 80], 25)
    assert (first.resident_mib, first.shared_mib, first.busy_percent) == (15 * GIB, 45 * GIB, 20)
    assert first.ram_mib == NOTEBOOK.ram_mib + 60 * GIB, "its node has room for the copy"
    assert others == pods[1:]


def test_memory_of_the_node_limits_them() -> None:
    small = Machine("node", 1_000_000, 200 * GIB, 1, "A100", 80 * GIB)
    assert placed("binpack", sharing([NOTEBOOK] * 10, [90] * 10, 3), small) == 3


def test_cards_whose_pods_wait_for_each_other() -> None:
    busy, idle = (sharing([NOTEBOOK], [percent], 3)[0] for percent in (40, 90))
    on = [Placement(0, (0,)), Placement(0, (1,))]
    running = [(busy, on[0]), (busy, on[0]), (idle, on[1]), (idle, on[1]), (NOTEBOOK, Placement(1, (0,)))]
    assert contended_percent(running) == 50
    assert contended_percent([(NOTEBOOK, on[0])]) == 0


def test_the_ledger_has_the_same_room() -> None:
    """Random pods come and go: a card of the simulation takes what the scheduler's ledger takes."""
    chance = random.Random(3)
    fleet, ledger = Fleet([CARD]), Ledger()
    ledger.set_node(NodeCards("node", (Card(uuid="GPU", index=0, minor=0, memory_mib=80 * GIB),)))
    ledger.set_host_memory("node", 10_000 * GIB)
    running: dict[Holder, Shape] = {}
    for number in range(300):
        percent = chance.choice([0, 0, 3, 25])
        demand = ContainerDemand(
            provisioner=names.VCUDA,
            core=1,
            memory_mib=chance.randrange(1, 80 * GIB),
            parkable=percent > 0,
            resident_percent=percent,
        )
        resident = -(-demand.memory_mib * percent // 100)
        shape = Shape(cards=1, core_milli=10, card_memory_mib=demand.memory_mib, resident_mib=resident)
        request = Request(PodDemand(containers={"c": demand}))
        fit = bool(fits(request, ledger, ["node"])[0])
        assert bool(fleet.eligible_cards(shape, 0)) == fit, number
        if fit:
            holder = Holder("pod", str(number))
            share = CardShare(uuid="GPU", index=0, minor=0, core=1, memory_mib=demand.memory_mib, resident_mib=resident)
            granted = ContainerAllocation(provisioner=names.VCUDA, mode="shared", cards=(share,))
            ledger.hold(holder, PodAllocation(node="node", containers={"c": granted}))
            fleet.take(shape, Placement(0, (0,)))
            running[holder] = shape
        if running and (not fit or chance.random() < 0.3):
            gone = chance.choice(list(running))
            ledger.release(gone)
            fleet.release(running.pop(gone), Placement(0, (0,)))
        assert int(fleet.card_memory[0, 0]) == int(ledger.memory_free[0, 0])


NODES = "sn,cpu_milli,memory_mib,gpu,model,gpu_memory_mib\nnode,1000000,4096000,1,A100,81920\n"
PODS = "cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,gpu_memory_mib,gpu_idle_percent\n"


def simulated(directory: Path, pods: str, *options: str) -> Any:
    (directory / "nodes.csv").write_text(NODES)
    (directory / "pods.csv").write_text(pods)
    files = ["--nodes", str(directory / "nodes.csv"), "--pods", str(directory / "pods.csv")]
    return CliRunner().invoke(app, ["simulate", *files, "--policy", "binpack", *options])


def test_the_command_answers(tmp_path: Path) -> None:
    pods = PODS + "1000,1024,1,100,,61440,80\n" * 10
    done = simulated(tmp_path, pods, "--load", "1", "--parking", "3%", "-o", "json")
    assert done.exit_code == 0, done.output
    plain, parked = json.loads(done.stdout)
    assert (plain["policy"], plain["refusedPods"]) == ("binpack", 9)
    assert (parked["policy"], parked["refusedPods"]) == ("binpack + parking", 0)
    assert parked["contendedCardsPercent"] == 100, "ten that are busy for a fifth of the time"


def test_a_trace_without_idle_times(tmp_path: Path) -> None:
    done = simulated(tmp_path, PODS + "1000,1024,1,100,,61440,\n", "--parking", "3%")
    assert done.exit_code != 0
    assert isinstance(done.exception, InvalidInput)
    assert "gpu_idle_percent" in str(done.exception)
