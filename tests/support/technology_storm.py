"""A storm of mixed demands: every technology on the same few cards, with the extender or an agent killed at any step.

    python -m support.technology_storm --rounds 1000 --seed 7

The extender is the product's, on a pretend API server. The agents' instances of MIG are the product's, on the driver of
a simulated machine, whose cards belong to several nodes. Somebody else makes and destroys instances by hand meanwhile.
After every step a witness looks at each card: what lies there must fit beside each other, and no instance of a running
container may go. At the end everything has to be given back. It ends at the first problem, and says what it has done.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import structlog

from egpu.adapters.cards.mig import NvmlInstances
from egpu.adapters.cards.nvml import CardReading, NvmlInventory
from egpu.adapters.cards.package import nvml
from egpu.api.mig import InstancePlace
from egpu.api.objects import ElasticGPU, ElasticGPUClaim, ElasticGPUClass
from egpu.apps.agent.cards.mig_instances import Instances
from egpu.apps.agent.cards.publisher import card_object
from egpu.core.placement.cache import rebuild
from egpu_base.api.kubernetes import Pod
from egpu_base.errors import ElasticGPUError
from support.card_witness import KnownCard, containers, holdings, placed, wrong_with
from support.fake_api import FakeAPI, Json, status
from support.mixed_demands import BESIDE, claim, classes, demand, pod
from support.mortal_extender import MortalExtender
from support.simulated_gpu import machine
from support.waiting import until
from support.watched_driver import Killed, WatchedDriver

MODELS: Final = ("A100-40G", "A100-40G", "H100-80G", "T4", "A30", "H200", "T4", "A100-80G")
CUT: Final = (0, 2, 4)
"""Those of the cards that are in MIG mode."""
UNLIMITED: Final = (3, 6)
"""Those whose driver limits no memory."""
CARDS_PER_NODE: Final = 2
MOST_PODS, MOST_CLAIMS = 30, 12
MOST_STEPS: Final = 6
"""Of an agent that is to die, until it does."""
EXTENDER_DIES, AGENT_DIES = 0.04, 0.4
"""How often, of binds, and of containers that start."""
REFUSED: Final = 0.1
"""Of the bindings, by the API server."""
COMPARED_EVERY: Final = 10
"""Rounds."""
AT_THE_END_SECONDS: Final = 60.0


class Storm:
    """`round` after round, and `give_back` at the end; `done` counts what happened."""

    def __init__(self, inventory: NvmlInventory, home: Path, rng: random.Random) -> None:
        self._rng = rng
        self._inventory = inventory
        self.driver = WatchedDriver(inventory)
        self._home = home
        self._api = FakeAPI()
        self._extender = MortalExtender(self._api, rng)
        self._readings = self._read()
        self._nodes = sorted({self._node_of(card.index) for card in self._readings.values()})
        self._agents = {node: self._new_agent(node) for node in self._nodes}
        self._by_hand: list[tuple[str, InstancePlace]] = []
        self._names = 0
        self.done: Counter[str] = Counter()
        self._api.fault = self._refuse

    def _read(self) -> dict[str, CardReading]:
        found = [
            replace(card, memory_isolation="" if card.index in UNLIMITED else "driver")
            for card in self._inventory.read()
        ]
        return {card.uuid: card for card in found}

    def _node_of(self, index: int) -> str:
        return f"n{index // CARDS_PER_NODE}"

    def _new_agent(self, node: str) -> Instances:
        return Instances(self.driver, self._home / f"{node}.json")

    async def start(self) -> None:
        for each in classes():
            self._api.put("elasticgpuclasses", each)
        for node in self._nodes:
            self._api.put("nodes", {"kind": "Node", "metadata": {"name": node}})
            self._publish(node)
        await self._extender.start()

    def _refuse(self, _: FakeAPI, request: httpx2.Request) -> httpx2.Response | None:
        if not request.url.path.endswith("/binding") or self._rng.random() >= REFUSED:
            return None
        self.done["binding refused"] += 1
        return status(403, "Forbidden")

    # ---- what happens ------------------------------------------------------------------------------------------------

    async def round(self) -> None:
        for _ in range(self._rng.randrange(1, 4)):
            self._somebody_asks()
        await asyncio.sleep(0.001)  # the watches go on
        waiting = [one for one in self._api.all("pods") if not one["spec"].get("nodeName")]
        for one in self._rng.sample(waiting, min(len(waiting), 8)):
            await self._schedule(one)
            self._look()
        for one in placed(self._api):
            await self._run(one)
            self._look()
        self._somebody_cuts_by_hand()
        self._publish(self._rng.choice(self._nodes))
        self._somebody_ends()
        self._look()

    def _somebody_asks(self) -> None:
        if len(self._api.all("pods")) >= MOST_PODS:
            return
        profiles = [each.name for card in self._readings.values() if card.mig for each in card.mig.profiles]
        asked = {f"c{at}": demand(self._rng, profiles) for at in range(self._rng.choice((1, 1, 1, 2, 3)))}
        claims: dict[str, str] = {}
        for container, one in asked.items():
            if one.klass:
                if len(self._api.all("elasticgpuclaims")) >= MOST_CLAIMS:
                    return
                claims[container] = self._name("claim")
                self._api.put("elasticgpuclaims", claim(claims[container], one))
        self._api.put("pods", pod(self._name("pod"), asked, claims))

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}-{self._names}"

    async def _schedule(self, one: Json) -> None:
        if self._rng.random() < EXTENDER_DIES:
            self._extender.will_die()
        if await self._extender.place(one, self._nodes):
            for beside in json.loads(one["metadata"]["annotations"][BESIDE]).values():
                self.done[f"placed: {beside}"] += 1
        await self._extender_again()

    async def _extender_again(self) -> None:
        """If it is dead."""
        if self._extender.is_dead:
            await self._extender.stop()
            await self._extender.start()

    async def _run(self, one: Json) -> None:
        """What kubelet and the node's agent do for a pod that has a node."""
        name, node = one["metadata"]["name"], one["spec"]["nodeName"]
        shares = [share for given in containers(one).values() for share in given.cards]
        if name in self.driver.in_use:
            return
        if self._rng.random() < AGENT_DIES:
            self.driver.left = self._rng.randrange(MOST_STEPS)
        try:
            for share in shares:
                if share.instance is not None:
                    found = await self._agents[node].have(share.uuid, share.instance)
                    assert found.whole
                    assert found.place == share.instance
        except Killed:
            await self._agent_again(node)
        except ElasticGPUError:  # somebody's instance is in the way
            self.done["waits on its node"] += 1
        else:
            self.driver.in_use[name] = shares
            self.done["runs"] += 1
        finally:
            self.driver.left = None

    async def _agent_again(self, node: str) -> None:
        self.done["agent killed"] += 1
        self._agents[node] = self._new_agent(node)
        self.driver.left = self._rng.choice((None, self._rng.randrange(4)))
        try:
            await self._agents[node].recover()
        except Killed:
            await self._agent_again(node)

    def _somebody_cuts_by_hand(self) -> None:
        """Makes an instance somewhere, or destroys one of those that nobody was given."""
        given = {(uuid, one.instance) for uuid, held in holdings(self._api).items() for one in held}
        free = [one for one in self._by_hand if one not in given]
        if free and self._rng.random() < 0.5:
            self._unmake(self._rng.choice(free))
            return
        card = self._rng.choice([card for card in self._readings.values() if card.mig])
        assert card.mig is not None
        profile = self._rng.choice(card.mig.profiles)
        place = InstancePlace(profile=profile.name, start=self._rng.choice(profile.starts), size=profile.size)
        if (card.uuid, place) in given or self._rng.random() < 0.6:
            return
        try:
            NvmlInstances.create_gpu_instance(self.driver, card.uuid, place)
            NvmlInstances.create_compute_instance(self.driver, card.uuid, place)
        except ElasticGPUError:
            return
        self._by_hand.append((card.uuid, place))
        self.done["made by hand"] += 1

    def _unmake(self, one: tuple[str, InstancePlace]) -> None:
        NvmlInstances.destroy_compute_instances(self.driver, *one)
        NvmlInstances.destroy_gpu_instance(self.driver, *one)
        self._by_hand.remove(one)

    def _publish(self, node: str) -> None:
        self._readings = self._read()
        for card in self._readings.values():
            if self._node_of(card.index) == node:
                made = card_object(node, card, "", self._agents[node].own(card.uuid))
                self._api.put("elasticgpus", _json(made))

    def _somebody_ends(self) -> None:
        """Some pods, and claims that no pod uses."""
        for one in self._api.all("pods"):
            if self._rng.random() < (0.25 if one["metadata"]["name"] in self.driver.in_use else 0.05):
                self._end(one)
        for one in self._unused_claims():
            if self._rng.random() < 0.3:
                self._api.remove("elasticgpuclaims", one, "ns")

    def _end(self, one: Json) -> None:
        self.driver.in_use.pop(one["metadata"]["name"], None)
        self._api.remove("pods", one["metadata"]["name"], "ns")

    def _unused_claims(self) -> list[str]:
        used = {
            value
            for one in self._api.all("pods")
            for key, value in one["metadata"]["annotations"].items()
            if value.startswith("claim-") and "/" in key
        }
        return [
            one["metadata"]["name"] for one in self._api.all("elasticgpuclaims") if one["metadata"]["name"] not in used
        ]

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        known = {
            uuid: KnownCard(card.memory_mib, card.mig.profiles if card.mig else (), card.memory_isolation == "driver")
            for uuid, card in self._readings.items()
        }
        held = holdings(self._api)
        wrong = [f"{uuid}: {text}" for uuid, lying in held.items() for text in wrong_with(known[uuid], lying)]
        assert not wrong, wrong
        assert not self.driver.problems, self.driver.problems
        self.done["looked"] += 1

    async def compare(self) -> None:
        """What the extender has in its books is what a new one would have."""
        await self._extender_again()
        self._extender.will_live()
        client = self._api.client()

        async def same() -> bool:
            gpus, pods = await client.list(ElasticGPU), await client.list(Pod)
            claims, classes = await client.list(ElasticGPUClaim), await client.list(ElasticGPUClass)
            ours, anew = self._extender.extender.view.cache.ledger, rebuild(gpus, pods, claims, classes).ledger
            return (ours.snapshot(), ours.holders()) == (anew.snapshot(), anew.holders())

        await until(same, "the extender's books are those of a new one", seconds=AT_THE_END_SECONDS)

    async def give_back(self) -> None:
        """All pods and claims go, and what was made by hand: then each card is whole again, for whoever wants it."""
        for one in self._api.all("pods"):
            self._end(one)
        for name in self._unused_claims():
            self._api.remove("elasticgpuclaims", name, "ns")
        for one in list(self._by_hand):
            self._unmake(one)
        for node in self._nodes:
            self._publish(node)
        await self.compare()
        ledger = self._extender.extender.view.cache.ledger
        assert not ledger.holders(), ledger.holders()
        assert all(free[:1] + free[2:] == (100, "", True) for free in ledger.snapshot().values()), ledger.snapshot()
        for card in self._read().values():
            await self._whole_again(card)
        await self._extender.stop()
        self.done["extender killed"] = self._extender.killed
        self.done |= {f"instances: {what}": count for what, count in self.driver.steps.items()}

    async def _whole_again(self, card: CardReading) -> None:
        if card.mig is None:
            return
        agent = self._agents[self._node_of(card.index)]
        there, known = {one.place for one in card.mig.instances}, agent.own(card.uuid)
        assert there == known, f"there is {there - known} that nobody knows of, and no {known - there}"
        assert all(one.whole for one in card.mig.instances), "an instance is half made"
        largest = max(card.mig.profiles, key=lambda each: each.size)
        assert (await agent.have(card.uuid, InstancePlace(profile=largest.name, start=0, size=largest.size))).whole


def _json(value: msgspec.Struct) -> Json:
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


async def run(rounds: int, seed: int) -> Mapping[str, int]:
    """What was done. Raises AssertionError with what is wrong."""
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder), MODELS, None) as made:
        inventory = NvmlInventory(made.driver_dir / "libnvidia-ml.so.1", instances=True)
        for index in CUT:
            inventory.on_card(made.cards[index].uuid, lambda handle: nvml.nvmlDeviceSetMigMode(handle, 1))
        storm = Storm(inventory, made.directory, random.Random(seed))
        try:
            with storm.driver.writes_too():
                await storm.start()
                for number in range(rounds):
                    try:
                        await storm.round()
                        if number % COMPARED_EVERY == 0:
                            await storm.compare()
                    except AssertionError as error:
                        raise AssertionError(f"seed {seed}, round {number}: {error}") from error
                await storm.give_back()
        finally:
            inventory.close()
        return storm.done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 16))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    print(json.dumps(asyncio.run(run(options.rounds, options.seed)), indent=1))


if __name__ == "__main__":
    main()
