"""The slots of ResourceClaims: prepared, left alone, made again, removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from egpu.adapters.slices.pages import read_policy
from egpu.api import names
from egpu.apps.agent.dra.driver import slot_of
from egpu_base.errors import NotFound, TerminalError, Unavailable
from egpu_base.kubelet.dra import ClaimName
from support.claim_node import CLAIM, DEVICES, ClaimNode, put_claim, put_pod, result
from support.fake_api import FakeAPI
from support.local_node import card

OTHER = ClaimName("default", "d", "uid-d")


@pytest.fixture
async def api() -> FakeAPI:
    found = FakeAPI()
    put_pod(found, ("app", (("c", ""),)))
    put_claim(found, result(cores="30", memory="4Gi"))
    return found


@pytest.fixture
async def node(tmp_path: Path, api: FakeAPI) -> ClaimNode:
    return ClaimNode(tmp_path, api)


async def test_a_claim_gets_a_slot_with_its_amounts(node: ClaimNode) -> None:
    assert await node.prepare() == [(DEVICES[0], ("elasticgpu.io/claim=uid-c.gpu",))]
    (line,) = read_policy(node.policy()).devices
    assert (line.uuid, line.core_ppm, line.memory_limit_bytes) == (card(0).uuid, 300_000, 4 << 30)
    (device,) = node.spec().devices
    assert (node.spec().kind, device.name) == ("elasticgpu.io/claim", "uid-c.gpu")
    edits = device.container_edits
    assert {one.path for one in edits.device_nodes} == {"/dev/nvidia0"}
    slot = node.slots.path("uid-c.gpu")
    assert [(one.container_path, one.host_path, one.options[0]) for one in edits.mounts] == [
        ("/opt/egpu", str(slot), "ro"),
        ("/opt/egpu/usage", str(slot / "usage"), "rw"),
        ("/etc/ld.so.preload", str(slot / "ld.so.preload"), "ro"),
    ]
    assert {"usage", "ld.so.preload"} <= {file.name for file in slot.iterdir()}
    assert f"NVIDIA_VISIBLE_DEVICES={card(0).uuid}" in edits.env  # whatever the image asks of NVIDIA's runtime


async def test_the_claims_status_says_what_its_devices_got(node: ClaimNode, api: FakeAPI) -> None:
    foreign = {"driver": "other.example", "pool": "x", "device": "y"}
    claim = api.get("resourceclaims", "c", "default")
    claim["status"]["devices"] = [foreign]
    api.put("resourceclaims", claim)
    await node.prepare()
    theirs, ours = api.get("resourceclaims", "c", "default")["status"]["devices"]
    assert theirs == foreign
    assert (ours["driver"], ours["device"], ours["shareID"]) == (names.DRIVER, DEVICES[0], "s-gpu")
    assert (ours["data"]["cores"], ours["data"]["memoryMiB"], ours["data"]["uuid"]) == (30, 4096, card(0).uuid)
    writes = [method for method, path in api.log if path.endswith("/status")]
    await node.prepare()
    assert [method for method, path in api.log if path.endswith("/status")] == writes  # nothing new to say


async def test_a_priced_card_that_kube_scheduler_gave_out_is_not_prepared(node: ClaimNode, api: FakeAPI) -> None:
    put_claim(api, result() | {"tolerations": [{"operator": "Exists"}]})
    assert await node.prepare()
    await node.driver.unprepare(CLAIM)
    node.priced = True
    with pytest.raises(TerminalError, match="because it tolerates the taint"):
        await node.prepare()
    assert not node.left()


async def test_a_running_slot_stays_as_it_is(node: ClaimNode) -> None:
    await node.prepare()
    before = node.policy().stat().st_ino
    for one in (node, node.again()):
        await one.prepare()
        assert one.policy().stat().st_ino == before


async def test_a_missing_cdi_file_is_written_again(node: ClaimNode) -> None:
    await node.prepare()
    before, written = node.policy().stat().st_ino, node.spec()
    node.specs.remove(slot_of(CLAIM.uid, "gpu"))
    again = node.again()  # killed between slot and file
    await again.prepare()
    assert again.spec() == written
    assert again.policy().stat().st_ino == before


async def test_after_a_reboot_slots_are_made_again(node: ClaimNode) -> None:
    await node.prepare()
    record = node.slots.record("uid-c.gpu")
    assert record is not None
    node.slots.amend(msgspec.structs.replace(record, boot_id="earlier", minors={card(0).uuid: 7}))
    again = node.again()
    await again.prepare()
    record = again.slots.record("uid-c.gpu")
    assert record is not None
    assert record.minors == {card(0).uuid: 0}


async def test_a_starting_agent_keeps_the_files_of_claims(node: ClaimNode) -> None:
    await node.prepare()
    written = node.spec()
    assert node.again().spec() == written  # a container that starts again is not prepared again


async def test_unprepare_removes_this_claim_only_and_can_be_repeated(node: ClaimNode, api: FakeAPI) -> None:
    put_pod(api, ("app", (("d", ""),)), pod="q")
    put_claim(api, result(cores="10", memory="1Gi"), claim=OTHER, pod="q")
    await node.prepare()
    await node.prepare(OTHER)
    await node.driver.unprepare(CLAIM)
    assert node.left() == ["uid-d.gpu", "uid-d.gpu"]
    await node.driver.unprepare(CLAIM)
    await node.driver.unprepare(OTHER)
    assert node.left() == []


async def test_unprepare_ends_what_a_kill_left_half_removed(node: ClaimNode) -> None:
    for half in ("slot", "file"):
        await node.prepare()
        if half == "slot":
            node.specs.remove("uid-c.gpu")
        else:
            node.slots.remove("uid-c.gpu")
        again = node.again()
        await again.driver.unprepare(CLAIM)
        assert again.left() == []


async def test_a_kill_before_the_slot_was_in_place_leaves_nothing(
    node: ClaimNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(node.slots, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        await node.prepare()
    assert node.left() == []
    again = node.again()
    await again.prepare()
    assert again.left() == ["uid-c.gpu", "uid-c.gpu"]


async def test_another_claim_of_the_name_or_none_is_refused(node: ClaimNode) -> None:
    with pytest.raises(TerminalError, match=r"UID uid-x, and the API server has uid-c"):
        await node.prepare(ClaimName("default", "c", "uid-x"))
    with pytest.raises(NotFound):
        await node.prepare(ClaimName("default", "none", "uid-n"))
    with pytest.raises(TerminalError, match="not the UID of a claim"):
        await node.prepare(ClaimName("default", "c", "../../x"))
    assert node.left() == []


async def test_a_claim_of_no_pod_here_waits(node: ClaimNode, api: FakeAPI) -> None:
    pod = api.get("pods", "p", "default")
    pod["spec"]["nodeName"] = "elsewhere"
    api.put("pods", pod)
    with pytest.raises(Unavailable, match="reserved for no pod of node node-a"):
        await node.prepare()


async def test_requests_of_one_claim_are_slots_of_their_containers(node: ClaimNode, api: FakeAPI) -> None:
    put_pod(api, ("one", (("c", "a"),)), ("two", (("c", "b"),)), ("three", (("c", "b"),)))
    put_claim(api, result("a", cores="30", memory="4Gi"), result("b", 1, cores="50", memory="8Gi"))
    assert await node.prepare() == [
        (DEVICES[0], ("elasticgpu.io/claim=uid-c.a",)),
        (DEVICES[1], ("elasticgpu.io/claim=uid-c.b",)),
    ]
    records = {one.slot_id: one.container for one in node.slots.records()}
    assert records == {"uid-c.a": "one", "uid-c.b": "two,three"}


async def test_several_cards_of_one_request_are_one_slot(node: ClaimNode, api: FakeAPI) -> None:
    put_claim(api, result(cores="30", memory="4Gi"), result("gpu", 1, cores="30", memory="4Gi"))
    assert await node.prepare() == [(DEVICES[0], ("elasticgpu.io/claim=uid-c.gpu",)), (DEVICES[1], ())]
    assert [line.uuid for line in read_policy(node.policy()).devices] == [card(0).uuid, card(1).uuid]


async def test_a_container_with_two_slots_is_refused(node: ClaimNode, api: FakeAPI) -> None:
    put_claim(api, result("a", cores="30", memory="4Gi"), result("b", cores="30", memory="4Gi"))
    with pytest.raises(TerminalError, match="it gets request b of claim c and request a, and a container can have one"):
        await node.prepare()
    assert node.left() == []
    put_pod(api, ("app", (("c", ""), ("d", ""))))
    put_claim(api, result(cores="30", memory="4Gi"))
    put_claim(api, result(cores="30", memory="4Gi"), claim=OTHER)
    await node.prepare()
    with pytest.raises(TerminalError, match="it gets request gpu of claim d and claim c, and"):
        await node.prepare(OTHER)


async def test_a_physical_card_comes_without_our_files(node: ClaimNode, api: FakeAPI) -> None:
    put_claim(api, result(), technology=names.PHYSICAL)
    await node.prepare()
    (device,) = node.spec().devices
    assert not device.container_edits.mounts  # those of a second claim would stay in force
    assert not node.policy().exists()


async def test_a_sick_card_waits(node: ClaimNode) -> None:
    await node.inventory.refresh()
    node.inventory.cards[card(0).uuid] = card(0, healthy=False, reason="XID 79")
    with pytest.raises(Unavailable, match="is unhealthy: XID 79"):
        await node.driver.prepare(CLAIM)
    assert node.left() == []


async def test_a_slot_lasts_as_long_as_its_claim(node: ClaimNode, api: FakeAPI) -> None:
    await node.prepare()
    api.remove("pods", "p", "default")
    await node.driver.sweep()
    assert node.left() == ["uid-c.gpu", "uid-c.gpu"]  # other pods may share the claim
    put_claim(api)  # deallocated
    await node.driver.sweep()
    assert node.left() == []
