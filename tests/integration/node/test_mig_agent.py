"""The agent's instances of MIG on simulated cards: made and destroyed around others, whole whenever it is killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import environment, machine

PROGRAM = """
import asyncio, dataclasses, json, os, sys
from pathlib import Path
from egpu.adapters.cards.mig import NvmlInstances
from egpu.adapters.cards.nvml import NvmlInventory
from egpu.api.mig import InstancePlace
from egpu.apps.agent.cards import mig_instances as module
from egpu.apps.agent.cards.mig_instances import Instances
from egpu_base.errors import ElasticGPUError

library, record, card = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
SIZES = {"1g.5gb": 1, "1g.5gb+me": 1, "2g.10gb": 2, "3g.20gb": 4, "4g.20gb": 4, "7g.40gb": 8}
STEPS = ("create_gpu_instance", "create_compute_instance", "destroy_compute_instances", "destroy_gpu_instance")

def at(text):
    profile, _, start = text.partition("@")
    return InstancePlace(profile=profile, start=int(start), size=SIZES[profile])

class Mortal(NvmlInstances):
    '''Dies before its nth step, counted with those of the record.'''
    left = 1 << 30
    def __getattribute__(self, name):
        if name in STEPS: Mortal.step()
        return super().__getattribute__(name)
    @staticmethod
    def step():
        Mortal.left -= 1
        if Mortal.left < 0: os._exit(9)

write = module.write_atomically
def dying_write(*arguments, **options):
    Mortal.step()
    write(*arguments, **options)
module.write_atomically = dying_write

def opened():
    inventory = NvmlInventory(library, instances=True)
    return inventory, Mortal(inventory.on_card)

def shown(source):
    found = source.instances(card).instances
    return [f"{one.place.profile}@{one.place.start}" + ("" if one.whole else " in pieces") for one in found]

async def have(*places):
    '''What there is at the end, and what was refused.'''
    inventory, source = opened()
    own = Instances(source, record)
    refused = []
    for place in places:
        try: await own.have(card, at(place))
        except ElasticGPUError as error: refused.append(type(error).__name__ + ": " + str(error))
    return {"there": shown(source), "own": sorted(f"{p.profile}@{p.start}" for p in own.own(card)), "refused": refused}

def in_child(work):
    '''Its answer; None where it died.'''
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with open(reader) as answer: return json.loads(answer.read()) if status == 0 else None

def recovered():
    inventory, source = opened()
    own = Instances(source, record)
    asyncio.run(own.recover())
    return {"there": shown(source), "own": sorted(f"{p.profile}@{p.start}" for p in own.own(card))}

def in_use():
    return [one.in_use for one in opened()[1].instances(card).instances]

def by_hand(*places):
    inventory, source = opened()
    for place in places:
        source.create_gpu_instance(card, at(place))
        source.create_compute_instance(card, at(place))
"""


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, "A100-40G", 1) as made:
        mode = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceSetMigMode(n.nvmlDeviceGetHandleByIndex(0), 1)"
        subprocess.run([sys.executable, "-c", mode], env=environment(made.driver_dir), check=True, timeout=60)
        yield made


def run(on: Machine, code: str) -> Any:
    arguments = [str(on.driver_dir / "libnvidia-ml.so.1"), str(on.directory / "instances.json"), on.cards[0].uuid]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code, *arguments],
        env=environment(on.driver_dir),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_instances_are_made_where_they_are_wanted_and_give_way_to_others(cut: Machine) -> None:
    assert run(
        cut,
        """
print(json.dumps([in_child(lambda: asyncio.run(have(*places))) for places in (
    ["1g.5gb@6", "2g.10gb@0", "1g.5gb@6"],
    ["4g.20gb@0"],
)]))
""",
    ) == [
        {"there": ["2g.10gb@0", "1g.5gb@6"], "own": ["1g.5gb@6", "2g.10gb@0"], "refused": []},
        {"there": ["4g.20gb@0", "1g.5gb@6"], "own": ["1g.5gb@6", "4g.20gb@0"], "refused": []},
    ]


def test_what_others_made_is_given_out_and_stays(cut: Machine) -> None:
    found = run(
        cut,
        """
in_child(lambda: by_hand("2g.10gb@2"))
print(json.dumps(in_child(lambda: asyncio.run(have("2g.10gb@2", "4g.20gb@0", "1g.5gb@0")))))
""",
    )
    assert (found["there"], found["own"]) == (["1g.5gb@0", "2g.10gb@2"], ["1g.5gb@0"])
    (refused,) = found["refused"]
    assert refused.startswith("Unavailable: 2g.10gb at 2 of card")
    assert "not created by this agent" in refused


def test_what_the_driver_refuses_is_not_called_its_own(cut: Machine) -> None:
    """Somebody else may make it next, and it must stay then. One instance of a card may have the media engines."""
    found = run(
        cut,
        """
in_child(lambda: by_hand("1g.5gb+me@0"))
print(json.dumps(in_child(lambda: asyncio.run(have("1g.5gb+me@1")))))
""",
    )
    assert (found["there"], found["own"], len(found["refused"])) == (["1g.5gb+me@0"], [], 1)


def test_an_instance_in_use_is_not_destroyed(cut: Machine) -> None:
    found = run(
        cut,
        """
first = in_child(lambda: asyncio.run(have("1g.5gb@0")))
import ctypes, subprocess
holder = subprocess.Popen([sys.executable, "-S", "-c", '''
import ctypes; c = ctypes.CDLL("libcuda.so.1"); assert c.cuInit(0) == 0
assert c.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0) == 0; print("on", flush=True); input()'''],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert holder.stdout.readline() == "on\\n"
during = in_child(lambda: asyncio.run(have("7g.40gb@0")))
used = [in_child(in_use)]
holder.communicate("\\n")
print(json.dumps([during, [*used, in_child(in_use)], in_child(lambda: asyncio.run(have("7g.40gb@0")))]))
""",
    )
    during, used, after = found
    assert during["there"] == during["own"] == ["1g.5gb@0"]
    assert "In use" in during["refused"][0]
    assert used == [[True], [False]]
    assert (after["there"], after["refused"]) == (["7g.40gb@0"], [])


def test_killed_before_any_step_the_next_agent_finds_or_leaves_nothing_half_made(cut: Machine) -> None:
    """Each round dies one step later, on the way from two instances to one in their place."""
    rounds = run(
        cut,
        """
def dying(after):
    Mortal.left = after
    return asyncio.run(have("4g.20gb@0"))

rounds = []
for after in range(100):
    in_child(lambda: asyncio.run(have("1g.5gb@0", "2g.10gb@2")))
    answer = in_child(lambda: dying(after))
    rounds.append([answer is None, in_child(recovered), in_child(lambda: asyncio.run(have("4g.20gb@0")))])
    if answer is not None: break
print(json.dumps(rounds))
""",
    )
    assert [died for died, _, _ in rounds] == [True] * (len(rounds) - 1) + [False]
    assert len(rounds) > 8, "each step of the driver and of the record is one to die before"
    for _, left, after in rounds:
        assert not any("in pieces" in one for one in left["there"])
        assert left["own"] == left["there"], "what is there is the agent's, and it knows of nothing else"
        assert after == {"there": ["4g.20gb@0"], "own": ["4g.20gb@0"], "refused": []}
