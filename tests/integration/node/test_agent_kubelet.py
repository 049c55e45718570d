"""Agent and kubelet over real sockets: every container gets what was written for that very container."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from egpu.adapters.registrar import ENDPOINT
from egpu.adapters.slices.pages import USAGE_SIZE, read_policy
from egpu.api import names
from egpu.api.allocation import ContainerAllocation
from egpu.api.objects import ElasticGPU, card_name
from egpu.apps.agent.slots import plugin
from egpu.core.provisioners.preparation import Preparation
from egpu_base.api.kubernetes import Event, Node
from egpu_base.errors import ElasticGPUError
from egpu_base.kubelet.podresources import PodResources
from egpu_sim.cluster.kubelet import end_all
from egpu_sim.cluster.kubelet.objects import Pod
from support.local_node import (
    NODE,
    LocalNode,
    card,
    ended,
    local_node,
    restarts,
    share,
    shell,
    vcuda,
    whole,
)
from support.process_table import with_command
from support.waiting import until

MIB = 1024 * 1024


@pytest_asyncio.fixture
async def node(request: pytest.FixtureRequest) -> AsyncGenerator[LocalNode]:
    """A node that chooses by itself how slots reach containers, unless a test is for `both`."""
    # A short path: a unix socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="egn-") as directory:
        async with local_node(Path(directory), cdi=getattr(request, "param", "auto")) as here:
            yield here


both = pytest.mark.parametrize("node", ["always", "never"], indirect=True)
"""By CDI and by paths."""


@both
async def test_a_container_gets_its_slice(node: LocalNode) -> None:
    script = "cat /etc/ld.so.preload; wc -c < /opt/egpu/policy; cat /dev/nvidia0; echo; cat /dev/nvidia1; echo $X"
    pod = await node.create("one", [shell("main", script)], {"main": vcuda(share(1, core=30, memory_mib=2048))})
    pod = await node.phase("one", "Succeeded", "Failed")
    log = node.log(pod, "main")
    assert "/opt/egpu/libegpu-interposer.so" in log
    assert "8192" in log
    assert f"EGPUSIM1 {card(1).uuid}" in log
    assert card(0).uuid not in log
    assert pod.status.phase == "Succeeded", log


@pytest.mark.parametrize("node", ["always"], indirect=True)
async def test_a_device_that_the_runtime_does_not_find_keeps_a_container_from_starting(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it finds it: kubelet asks the agent again."""
    with monkeypatch.context() as broken:
        broken.setattr(node.agent.specs, "write", lambda *_, **__: None)
        await node.create("late", [shell("main", "cat /dev/nvidia1")], {"main": vcuda(share(1))})
        message = await waiting_message(node, "late", "unresolvable CDI devices elasticgpu.io/slot=")
        assert "CDI device injection failed" in message
    pod = await node.phase("late", "Succeeded")
    assert card(1).uuid in node.log(pod, "main")


@pytest.mark.parametrize("node", ["always"], indirect=True)
async def test_a_runtime_finds_no_device_as_it_was_for_an_earlier_owner(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "PRESTART_SECONDS", 0.0)
    node.agent.specs.write("0", Preparation(minors=(0,)), by_environment=False)
    answer = await node.agent.plugin.allocate(("0",))
    assert list(node.cdi_dir.glob("*")) == []
    assert "/etc/ld.so.preload" in {mount.container_path for mount in answer.mounts}, "limits wait for no CDI"
    node.agent.specs.write("0", Preparation(minors=(0,)), by_environment=False)
    with pytest.raises(ElasticGPUError):
        await node.agent.plugin.pre_start(("0",))
    assert list(node.cdi_dir.glob("*")) == []


async def test_a_pod_may_have_its_libraries_preloaded_by_its_environment(node: LocalNode) -> None:
    script = "echo loads $LD_PRELOAD; cat /etc/ld.so.preload; true"
    annotations = {names.PRELOAD: names.PRELOAD_ENVIRONMENT}
    await node.create("env", [shell("main", script)], {"main": vcuda(share(1))}, annotations=annotations)
    pod = await node.phase("env", "Succeeded")
    log = node.log(pod, "main")
    assert "loads /opt/egpu/libegpu-interposer.so" in log
    assert log.count("libegpu-interposer.so") == 2, "beside the file that other programs read"
    assert "elasticgpu_agent_environment_preloads_total 1.0" in await node.agent_page("/metrics")


@pytest.mark.parametrize("node", ["never"], indirect=True)
async def test_where_paths_are_mounted_no_environment_can_preload(node: LocalNode) -> None:
    annotations = {names.PRELOAD: names.PRELOAD_ENVIRONMENT}
    await node.create("env", [shell("main", "true")], {"main": vcuda(share(1))}, annotations=annotations)
    assert "needs CDI" in await waiting_message(node, "env", names.PRELOAD)


async def test_the_node_says_how_slots_reach_its_containers(node: LocalNode) -> None:
    found = await node.client.get(Node, NODE)
    assert found.annotations[names.INJECTION].startswith("CDI: kubelet v1.36.0")


async def test_a_container_cannot_grow_what_it_may_write(node: LocalNode) -> None:
    if not node.agent.config.mount_usage:
        pytest.skip("nothing can be mounted here: the agent says so, and containers write on the node's file system")
    script = "wc -c < /opt/egpu/usage; head -c 9000000 /dev/zero 2>&1 1<> /opt/egpu/usage; sync; du -k /opt/egpu/usage"
    await node.create("one", [shell("main", script)], {"main": vcuda(share(1, core=30, memory_mib=2048))})
    pod = await node.phase("one", "Succeeded", "Failed")
    before, error, after = node.log(pod, "main").splitlines()
    assert (before, "No space left on device" in error, after.split()[0]) == (str(USAGE_SIZE), True, "276")


def limits(node: LocalNode, pod: Pod, container: str) -> dict[str, tuple[int, int]]:
    """The policy page of a container: (compute in ppm, memory in MiB) by card."""
    record = node.slot_of(pod, container)
    policy = read_policy(node.state_dir / "slots" / record.slot_id / "policy")
    return {each.uuid: (each.core_ppm, each.memory_limit_bytes // MIB) for each in policy.devices}


async def test_containers_of_one_pod_are_told_apart(node: LocalNode) -> None:
    show = "cat /dev/nvidia0 /dev/nvidia1; echo; sleep 100"
    pod = await node.create(
        "two",
        [shell("a", show), shell("plain", "ls /opt/egpu || sleep 100", gpu=False), shell("b", show)],
        {"a": vcuda(share(0, core=10, memory_mib=100)), "b": vcuda(share(1, core=20, memory_mib=200))},
    )
    await node.phase("two", "Running")
    await until(lambda: node.slot_of(pod, "a") and node.slot_of(pod, "b"), "both run")
    assert limits(node, pod, "a") == {card(0).uuid: (100_000, 100)}
    assert limits(node, pod, "b") == {card(1).uuid: (200_000, 200)}
    await until(lambda: card(0).uuid in node.log(pod, "a") and card(1).uuid in node.log(pod, "b"), "output")
    assert card(1).uuid not in node.log(pod, "a")
    await until(lambda: "No such file" in node.log(pod, "plain"), "output")


async def test_equal_pods_at_once_get_exactly_their_own(node: LocalNode) -> None:
    pods = {}
    for number in range(6):
        given = vcuda(share(number % 2, core=10 + number, memory_mib=100 + number))
        pods[number] = await node.create(f"same-{number}", [shell("main", "sleep 100")], {"main": given})
    for number in pods:
        await node.phase(f"same-{number}", "Running")
    for number, pod in pods.items():
        expected = {card(number % 2).uuid: ((10 + number) * 10_000, 100 + number)}
        assert limits(node, pod, "main") == expected
    slot_ids = {node.slot_of(pod, "main").slot_id for pod in pods.values()}
    assert len(slot_ids) == 6


@both
async def test_slots_come_back_and_carry_nothing_over(node: LocalNode) -> None:
    """Eight slots, twenty-four pods: slots are used again, by whole cards too, which have no policy at all."""
    for wave in range(3):
        made = {}
        for number in range(8):
            part = vcuda(share(0, core=1 + number, memory_mib=10 * wave + number + 1))
            given = whole(0) if number % 3 == 0 else part
            script = "ls /opt/egpu; grep -c . /etc/ld.so.preload; true"
            made[f"w{wave}-{number}"] = (
                number,
                await node.create(f"w{wave}-{number}", [shell("c", script)], {"c": given}),
            )
        for name, (number, _) in made.items():
            pod = await node.phase(name, "Succeeded")
            assert ("policy" in node.log(pod, "c")) == (number % 3 != 0), name
            await node.client.delete(type(pod), name, namespace="default")
        for name in made:
            await node.gone(name)
    assert node.agent is not None
    await until(lambda: not node.agent.slots.ids(), "slots swept")
    assert list(node.cdi_dir.glob("*")) == [], "and what they were as devices"


@both
async def test_init_containers_get_their_own_slice_on_a_shared_slot(node: LocalNode) -> None:
    look = "wc -c < /opt/egpu/policy; cat /dev/nvidia0 /dev/nvidia1"
    pod = await node.create(
        "staged",
        [shell("main", f"{look}; echo; sleep 100"), shell("second", "sleep 100")],
        {
            "first": vcuda(share(1, core=70, memory_mib=700)),
            "main": vcuda(share(0, core=10, memory_mib=100)),
            "second": vcuda(share(1, core=20, memory_mib=200)),
        },
        inits=[shell("first", f"{look}; echo; sleep 0.3"), shell("between", "true", gpu=False)],
    )
    await until(lambda: node.slot_of(pod, "first"), "init prepared")
    assert limits(node, pod, "first") == {card(1).uuid: (700_000, 700)}
    await node.phase("staged", "Running")
    await until(lambda: node.slot_of(pod, "main"), "main prepared")
    assert limits(node, pod, "main") == {card(0).uuid: (100_000, 100)}
    assert limits(node, pod, "second") == {card(1).uuid: (200_000, 200)}
    assert card(1).uuid in node.log(pod, "first")
    assert card(0).uuid not in node.log(pod, "first")
    await until(lambda: card(0).uuid in node.log(pod, "main"), "main's output")
    assert node.slot_of(pod, "first") is None, "the slot went on to an app container"


async def test_an_init_container_that_fails_once_is_prepared_again(node: LocalNode) -> None:
    pod = await node.create(
        "retry",
        [shell("main", "sleep 100")],
        {"first": vcuda(share(1, core=70, memory_mib=700)), "main": vcuda(share(0, core=10, memory_mib=100))},
        inits=[shell("first", "test -e /scratch/seen || { touch /scratch/seen; exit 1; }", volumeMounts=[SCRATCH])],
        volumes=[{"name": "scratch", "emptyDir": {}}],
        restartPolicy="OnFailure",
    )
    await node.phase("retry", "Running")
    pod = await node.read("retry")
    assert [one.restart_count for one in pod.status.init_container_statuses or []] == [1]
    await until(lambda: node.slot_of(pod, "main"), "main prepared")
    assert limits(node, pod, "main") == {card(0).uuid: (100_000, 100)}


SCRATCH = {"name": "scratch", "mountPath": "/scratch"}


async def test_a_restart_repeats_prestart_with_the_same_slot(node: LocalNode) -> None:
    script = "echo x > /opt/egpu/usage; cat /dev/nvidia1; exit 1"
    pod = await node.create(
        "crash", [shell("main", script)], {"main": vcuda(share(1, core=30))}, restartPolicy="Always"
    )
    first = await until(lambda: node.slot_of(pod, "main"), "prepared")

    async def restarted() -> bool:
        statuses = (await node.read("crash")).status.container_statuses
        return bool(statuses) and statuses[0].restart_count >= 2

    await until(restarted, "restarted")
    again = node.slot_of(pod, "main")
    assert again.slot_id == first.slot_id
    assert again.generation > first.generation
    assert limits(node, pod, "main") == {card(1).uuid: (300_000, 1024)}
    assert card(1).uuid in node.log(pod, "main", 1)
    (status,) = (await node.read("crash")).status.container_statuses or []
    assert status.last_state is not None
    assert status.last_state.terminated is not None
    assert status.last_state.terminated.exit_code == 1


@pytest.mark.parametrize("node", ["never"], indirect=True)
async def test_device_files_that_come_later_reach_containers(node: LocalNode) -> None:
    later = node.directory / "dev" / "nvidia-uvm-tools"
    later.unlink(missing_ok=True)

    def offered() -> bool:
        return f"/dev/{later.name}" in node.offered_devices()

    await until(lambda: not offered(), "an offer without it")
    later.touch()
    await until(offered, "an offer with it")


async def test_a_killed_kubelet_adopts_and_the_agent_registers_again(node: LocalNode) -> None:
    pod = await node.create("stays", [shell("main", "echo $$; exec sleep 987654")], {"main": vcuda(share(0, core=30))})
    ends = await node.create("ends", [shell("main", "sleep 1; exit 3")], {"main": vcuda(share(1, core=30))})
    await node.phase("stays", "Running")
    await node.phase("ends", "Running")
    before = node.slot_of(pod, "main")
    endpoint = node.kubelet_dir / "device-plugins" / ENDPOINT
    before_socket = endpoint.stat()
    await node.kill_kubelet()
    await until(lambda: list((node.kubelet_dir / "run" / ends.uid).glob("main/0/exit")), "it ends unseen")
    await node.start_kubelet()

    def registered_again() -> bool:  # on a socket of its own: the new kubelet has removed the one before
        there = endpoint.exists() and endpoint.stat().st_ctime_ns != before_socket.st_ctime_ns
        return there and node.shim.registrar.registered

    await until(registered_again, "registered again")
    after = await node.phase("ends", "Failed")
    assert ended(after).exit_code == 3
    late = await node.create("late", [shell("main", "true")], {"main": vcuda(share(1, core=30))})
    await node.phase("late", "Succeeded")
    assert len(with_command("sleep 987654")) == 1
    assert restarts(await node.read("stays")) == 0
    assert node.slot_of(pod, "main") == before, "its slot was not touched"
    assert node.slot_of(late, "main") is None or node.slot_of(late, "main").slot_id != before.slot_id


@both
async def test_a_restarted_agent_goes_on(node: LocalNode) -> None:
    pod = await node.create("runs", [shell("main", "sleep 100")], {"main": vcuda(share(0, core=30))})
    await node.phase("runs", "Running")
    before = node.slot_of(pod, "main")
    await node.stop_agent()
    waits = await node.create("waits", [shell("main", "true")], {"main": vcuda(share(0, core=40))})
    half_made = node.state_dir / "slots" / ".3.new.1"
    half_made.mkdir()
    await node.start_agent()
    await node.phase("waits", "Succeeded")
    assert node.slot_of(pod, "main") == before
    assert not half_made.exists()
    assert waits.uid != pod.uid


async def waiting_message(node: LocalNode, name: str, part: str) -> str:
    async def look() -> str:
        for status in (await node.read(name)).status.container_statuses or []:
            if status.state and status.state.waiting and part in status.state.waiting.message:
                return status.state.waiting.message
        return ""

    return await until(look, f"{name} says {part!r}")


@pytest.mark.parametrize(
    ("allocation", "reason"),
    [
        (None, "no allocation"),
        ({"other": vcuda(share(0))}, "the allocation is for other"),
        ({"main": vcuda(share(7))}, f"card {card(7).uuid} is not on this node"),
    ],
)
async def test_what_cannot_be_prepared_does_not_start(
    node: LocalNode, allocation: dict[str, ContainerAllocation] | None, reason: str
) -> None:
    pod = await node.create("refused", [shell("main", "true")], allocation)
    message = await waiting_message(node, "refused", reason)
    assert "pod default/refused, container main" in message
    assert node.slot_of(pod, "main") is None
    assert not list((node.kubelet_dir / "run" / pod.uid).glob("main/*/pid"))


async def test_an_unhealthy_card_holds_a_container_until_it_is_back(node: LocalNode) -> None:
    async def published(healthy: bool) -> bool:
        found = await node.client.get(ElasticGPU, card_name(NODE, card(1).uuid))
        capacity = (await node.client.get(Node, NODE)).status.allocatable or {}
        return found.status.healthy is healthy and str(capacity.get(names.NVIDIA_GPU)) == ("2" if healthy else "1")

    await until(lambda: published(True), "published as healthy")
    node.cards.cards = (card(0), card(1, healthy=False, reason="XID 79"))
    await until(lambda: published(False), "published as unhealthy")
    await node.create("held", [shell("main", "true")], {"main": vcuda(share(1))})
    node.cards.cards = (card(0), card(1))
    await node.phase("held", "Succeeded")
    await until(lambda: published(True), "published as healthy again")


async def test_a_sick_card_stays_in_the_sums_while_somebody_holds_it_and_is_told_of(node: LocalNode) -> None:
    """Or else what its pods have is taken off the other card, which is free."""
    name = card_name(NODE, card(1).uuid)
    await until(lambda: node.agent.publisher.published)
    given = {"status": {"given": {names.GPU_CORE: "60"}}}
    await node.client.patch(ElasticGPU, name, given, subresource="status")
    node.cards.cards = (card(0), card(1, healthy=False, reason="XID 79"))

    async def sums() -> str:
        found = await node.client.get(ElasticGPU, name)
        allocatable = (await node.client.get(Node, NODE)).status.allocatable or {}
        return f"{found.status.healthy} {allocatable.get(names.GPU_CORE)}"

    async def are(wanted: str) -> bool:
        return await sums() == wanted

    await until(lambda: are("False 200"), "counted while it is held")
    await node.client.patch(ElasticGPU, name, {"status": {"given": {names.GPU_CORE: "0"}}}, subresource="status")
    await node.agent.publisher.publish(tuple(node.agent.inventory.cards.values()))
    assert await sums() == "False 100"
    node.cards.cards = (card(0), card(1))
    await until(lambda: are("True 200"), "well again")
    events = {one.reason: one.message for one in await node.client.list(Event) if one.involved_object.name == name}
    assert events == {"Unhealthy": "XID 79: the card takes no new work", "Healthy": "the card takes new work again"}


async def test_an_agent_takes_the_start_up_taint_away_once(node: LocalNode) -> None:
    other = {"key": "a.b/c", "effect": "NoSchedule"}
    tainted = {"spec": {"taints": [other, {"key": names.AGENT_NOT_READY, "effect": "NoExecute"}]}}
    await node.stop_agent()
    await node.client.patch(Node, NODE, tainted)
    await node.start_agent()

    async def taints() -> list[str]:
        return [one.key for one in (await node.client.get(Node, NODE)).spec.taints or ()]

    async def removed() -> bool:
        return await taints() == ["a.b/c"]

    await until(removed, "the agent is ready")
    await node.client.patch(Node, NODE, tainted)
    await node.agent.publisher.publish(tuple(node.agent.inventory.cards.values()))
    assert len(await taints()) == 2, "the next agent takes it away"


async def test_the_room_of_a_slice_that_shrank_passes_kubelets_sums(node: LocalNode) -> None:
    """kubelet, as kube-scheduler, adds up what pods asked for when they were created."""

    def asking(core: int) -> dict[str, Any]:
        return shell("main", "sleep 654321") | {"resources": {"limits": {names.SLOT: "1", names.GPU_CORE: str(core)}}}

    async def offered(amount: int) -> bool:
        status = (await node.client.get(Node, NODE)).status
        return {str((each or {}).get(names.GPU_CORE)) for each in (status.capacity, status.allocatable)} == {
            str(amount)
        }

    given = vcuda(share(0, core=80))
    await node.create("shrinks", [asking(80)], {"main": given})
    await node.phase("shrinks", "Running")
    order = replace(given, cards=(share(0, core=30),), held=given.cards, revision=1)
    await node.reallocate("shrinks", {"main": order})
    await until(lambda: offered(250), "the node publishes what the slice asked for and does not hold")
    await node.reallocate("shrinks", {"main": replace(order, held=())})
    await node.create("takes", [asking(170)], {"main": vcuda(share(0, core=70), share(1, core=100))})
    await node.phase("takes", "Running")
    await node.client.delete(Pod, "shrinks", namespace="default", grace_period_seconds=0)
    await until(lambda: offered(200), "the cards alone")


@both
async def test_a_card_under_another_minor_is_found_by_uuid(node: LocalNode) -> None:
    (node.directory / "dev/nvidia0").write_text(f"EGPUSIM1 {card(1).uuid}")
    (node.directory / "dev/nvidia1").write_text(f"EGPUSIM1 {card(0).uuid}")
    node.cards.cards = (card(1, index=0, minor=0), card(0, index=1, minor=1))
    await until(lambda: node.agent.inventory.cards[card(1).uuid].minor == 0, "read again")
    pod = await node.create("moved", [shell("main", "cat /dev/nvidia0")], {"main": vcuda(share(1))})
    pod = await node.phase("moved", "Succeeded")
    assert card(1).uuid in node.log(pod, "main")


async def test_after_a_reboot_a_container_finds_its_card_under_another_minor(node: LocalNode) -> None:
    """The same slot, prepared anew: what was written down of it before names the card, and not where it was."""
    script = "cat /dev/nvidia0 /dev/nvidia1 2>/dev/null; echo; sleep 654321"
    pod = await node.create("stays", [shell("main", script)], {"main": vcuda(share(1))}, restartPolicy="Always")
    await node.phase("stays", "Running")
    await until(lambda: card(1).uuid in node.log(pod, "main"), "its card")
    assert node.slot_of(pod, "main").minors == {card(1).uuid: 1}
    await node.stop_agent()
    await node.kill_kubelet()
    await end_all(node.kubelet_dir)
    logs = node.kubelet_dir / "pods" / f"default_{pod.name}_{pod.uid}" / "main"
    for file in logs.glob("*.log"):
        file.unlink()
    (node.directory / "dev/nvidia0").write_text(f"EGPUSIM1 {card(1).uuid}")
    (node.directory / "dev/nvidia1").write_text(f"EGPUSIM1 {card(0).uuid}")
    node.cards.cards = (card(1, index=0, minor=0), card(0, index=1, minor=1))
    await node.start_kubelet()
    await node.start_agent()

    def said() -> str:
        return "".join(file.read_text() for file in logs.glob("*.log"))

    await until(lambda: card(1).uuid in said(), "its card, again")
    assert card(0).uuid not in said(), "and no other"
    assert node.slot_of(pod, "main").minors == {card(1).uuid: 0}
    (line,) = read_policy(node.agent.slots.policy_file(node.slot_of(pod, "main").slot_id)).devices
    assert (line.uuid, line.minor) == (card(1).uuid, 0)


async def test_a_plugin_socket_that_is_removed_is_made_again(node: LocalNode) -> None:
    """As by a kubelet that cleans its directory when it starts; whoever runs goes on."""
    running = await node.create("runs", [shell("main", "sleep 543210")], {"main": vcuda(share(0, core=30))})
    await node.phase("runs", "Running")
    endpoint = node.kubelet_dir / "device-plugins" / ENDPOINT
    endpoint.unlink()
    await until(lambda: endpoint.exists() and node.shim.registrar.registered, "registered again")

    async def listed() -> bool:
        return bool((await PodResources(node.kubelet_dir).allocatable()).get(names.SLOT))

    await until(listed, "what kubelet gives out, which it asks for once we are registered")
    await node.create("late", [shell("main", "true")], {"main": vcuda(share(0, core=30))})
    await node.phase("late", "Succeeded")
    assert restarts(await node.read(running.name)) == 0


async def test_a_card_that_is_pulled_out_is_said_to_be_gone_and_holds_nobody_else_up(node: LocalNode) -> None:
    """Its holder runs until it meets the driver; the card stays published, and is well when it is back."""
    holder = await node.create("holder", [shell("main", "sleep 432109")], {"main": vcuda(share(1))})
    await node.phase("holder", "Running")
    node.cards.cards = (card(0),)

    async def said(healthy: bool) -> bool:
        return (await node.client.get(ElasticGPU, card_name(NODE, card(1).uuid))).status.healthy is healthy

    await until(lambda: said(False), "published as gone")
    assert (await node.client.get(ElasticGPU, card_name(NODE, card(1).uuid))).status.phase == "Failed"
    await node.create("other", [shell("main", "true")], {"main": vcuda(share(0))})
    await node.phase("other", "Succeeded")
    assert restarts(await node.read(holder.name)) == 0
    assert node.slot_of(holder, "main") is not None
    node.cards.cards = (card(0), card(1))
    await until(lambda: said(True), "published as well")


async def test_deletion_ends_the_process_and_sweeps_the_slot(node: LocalNode) -> None:
    script = "trap 'echo bye; exit 0' TERM; sleep 876543 & wait"
    pod = await node.create("leaves", [shell("main", script)], {"main": vcuda(share(0))})
    await node.phase("leaves", "Running")
    await until(lambda: node.slot_of(pod, "main"), "slot")
    await node.client.delete(type(pod), "leaves", namespace="default")
    await node.gone("leaves")
    assert not with_command("sleep 876543")
    await until(lambda: node.slot_of(pod, "main") is None, "slot swept")


async def test_the_node_publishes_every_vocabulary(node: LocalNode) -> None:
    async def complete() -> Node | None:
        found = await node.client.get(Node, NODE)
        return found if names.NVIDIA_GPU in (found.status.capacity or {}) else None

    found = await until(complete, "slots published, and then amounts")
    capacity = {key: str(value) for key, value in (found.status.capacity or {}).items()}
    assert capacity[names.SLOT] == "8"
    assert capacity[names.NVIDIA_GPU] == "2"
    assert capacity[names.DOCKER_VCUDA_CORE] == "200"
    assert capacity[names.DOCKER_VCUDA_MEMORY] == str(2 * 16384 // 256)
    assert found.metadata.labels is not None
    assert found.metadata.labels["elasticgpu.io/gpu-product"] == "Simulated-T4"
    cards = await node.client.list(ElasticGPU)
    assert {each.spec.physical_gpu.uuid for each in cards if each.spec.physical_gpu} == {card(0).uuid, card(1).uuid}
