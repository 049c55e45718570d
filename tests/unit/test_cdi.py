"""Slots as CDI devices: what is written, what a runtime makes of it, and when the agent chooses them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from egpu.adapters.cards.mps import Shown
from egpu.apps.agent.slots.cdi import SlotSpecs, device_name
from egpu.apps.agent.slots.devices import NVIDIA as NVIDIA_NAMES
from egpu.apps.agent.slots.devices import DeviceFiles
from egpu.apps.agent.slots.injection import Injection, Mode, choose
from egpu.core.provisioners.preparation import INTERPOSER, REMOTE_LIBRARIES, Preparation
from egpu_base.api.kubernetes import NodeSystemInfo
from egpu_base.errors import CorruptData, NotSupported, TerminalError, Unavailable
from egpu_base.kubelet import cdi
from egpu_sim.cluster.kubelet.cdi import resolve

NVIDIA: dict[str, Any] = {
    "cdiVersion": "0.6.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["update-ldcache"]}],
        "mounts": [
            {
                "hostPath": "/usr/lib64/libcuda.so.570.1",
                "containerPath": "/usr/lib64/libcuda.so.570.1",
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ],
    },
}


class Node:
    """Directories of one node with two cards and some control devices, all plain files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "dev").mkdir()
        for file in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
            (root / "dev" / file).touch()
        self.directories = (root / "etc", root / "run")
        self.devices = DeviceFiles(root / "dev", root / "state")
        self.specs = SlotSpecs(self.directories, self.devices)
        self.specs.open()

    def write(self, plan: Preparation, *, by_environment: bool = False) -> None:
        self.specs.write("7", plan, by_environment=by_environment)

    @property
    def file(self) -> Path:
        return self.root / "run/elasticgpu.io-slot_7.json"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_slot_is_the_card_that_was_granted_and_its_control_devices(node: Node) -> None:
    node.write(Preparation(minors=(1,), libraries=INTERPOSER))
    edits = resolve([device_name("7")], node.directories)
    assert {each.container_path: each.host_path for each in edits.devices} == {
        f"/dev/{file}": str(node.root / "dev" / file) for file in ("nvidia1", "nvidiactl", "nvidia-uvm")
    }
    assert json.loads(node.file.read_text())["cdiVersion"] == "0.5.0"


def test_a_container_without_cards_gets_no_device_at_all(node: Node) -> None:
    """Neither ours, nor what NVIDIA's specification has for all of its devices, nor any from NVIDIA's runtime."""
    node.directories[0].mkdir()
    (node.directories[0] / "nvidia.yaml").write_text(yaml.safe_dump(NVIDIA))
    node.write(Preparation(libraries=REMOTE_LIBRARIES, executor="here"))
    edits = resolve([device_name("7")], node.directories)
    assert edits.devices == ()
    assert edits.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "libcuda" not in node.file.read_text()


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_the_drivers_libraries_come_from_nvidias_specification(node: Node, suffix: str) -> None:
    node.directories[0].mkdir()
    written = json.dumps(NVIDIA) if suffix == "json" else yaml.safe_dump(NVIDIA)
    (node.directories[0] / f"nvidia.{suffix}").write_text(written)
    node.write(Preparation(minors=(0,)))
    spec = cdi.read(node.file)
    edits = spec.devices[0].container_edits
    assert spec.cdi_version == "0.6.0", "what is in it is as new as the file that it is from"
    assert edits.mounts[0].container_path == "/usr/lib64/libcuda.so.570.1"
    assert edits.hooks[0]["path"] == "/usr/bin/nvidia-cdi-hook"
    assert edits.env == ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void")
    assert {each.path for each in edits.device_nodes} == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert {each.host_path for each in edits.device_nodes} == {
        str(node.root / "dev" / file) for file in ("nvidia0", "nvidiactl", "nvidia-uvm")
    }


def test_a_damaged_specification_of_others_stops_nobody(node: Node) -> None:
    node.directories[0].mkdir()
    (node.directories[0] / "nvidia.yaml").write_text("cdiVersion: [")
    (node.directories[0] / "other.json").write_text('{"cdiVersion": "9.0.0", "kind": "a.b/c", "later": 1}')
    node.write(Preparation(minors=(0,)))
    assert resolve([device_name("7")], node.directories).devices


def test_preloading_by_environment(node: Node) -> None:
    node.write(Preparation(minors=(0,), libraries=INTERPOSER), by_environment=True)
    edits = resolve([device_name("7")], node.directories)
    assert edits.envs["LD_PRELOAD"] == "/opt/egpu/libegpu-interposer.so"


def test_a_client_of_an_mps_server_has_its_pipes_and_shared_memory_beside_the_drivers_libraries(node: Node) -> None:
    node.directories[0].mkdir()
    (node.directories[0] / "nvidia.json").write_text(json.dumps(NVIDIA))
    pipes, shared = node.root / "clients", node.root / "shm"
    specs = SlotSpecs(node.directories, node.devices)
    specs.write("7", Preparation(minors=(0,)), by_environment=False, shown=Shown(pipes, shared))
    edits = cdi.read(node.file).devices[0].container_edits
    assert f"CUDA_MPS_PIPE_DIRECTORY={pipes}" in edits.env
    assert {each.container_path: each.host_path for each in edits.mounts} == {
        "/usr/lib64/libcuda.so.570.1": "/usr/lib64/libcuda.so.570.1",
        str(pipes): str(pipes),
        "/dev/shm": str(shared),
    }
    options = {each.container_path: each.options for each in edits.mounts}
    assert options[str(pipes)][0] == "ro", "a program changes no name there"
    assert options["/dev/shm"][0] == "rw"


def test_nothing_of_an_earlier_agent_is_believed(node: Node) -> None:
    node.write(Preparation(minors=(0,)))
    others = node.root / "run/nvidia.yaml"
    others.write_text(yaml.safe_dump(NVIDIA))
    SlotSpecs(node.directories, node.devices).open()
    assert (node.file.exists(), others.exists()) == (False, True)


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    specs = SlotSpecs([tmp_path / "file/cdi"], DeviceFiles(tmp_path, tmp_path))
    with pytest.raises(NotSupported, match="--cdi never"):
        specs.open()


# ---- the runtime's side


def test_a_name_that_nothing_explains_is_refused_in_containerds_words(node: Node) -> None:
    node.write(Preparation(minors=(0,)))
    node.specs.remove("7")
    with pytest.raises(
        TerminalError, match=r"CDI device injection failed: unresolvable CDI devices elasticgpu.io/slot=7$"
    ):
        resolve([device_name("7")], node.directories)


def test_a_link_is_no_device_file(node: Node) -> None:
    (node.root / "dev/nvidia0").unlink()
    (node.root / "dev/nvidia0").symlink_to(node.root / "dev/nvidia1")
    node.write(Preparation(minors=(0,)))
    with pytest.raises(TerminalError, match="not a device node"):
        resolve([device_name("7")], node.directories)


def test_hooks_are_refused_by_name(node: Node) -> None:
    node.directories[0].mkdir()
    (node.directories[0] / "nvidia.json").write_text(json.dumps(NVIDIA))
    node.write(Preparation(minors=(0,)))
    with pytest.raises(TerminalError, match="createContainer"):
        resolve([device_name("7")], node.directories)


def test_two_files_of_one_directory_that_explain_a_name_explain_it_not(node: Node) -> None:
    node.write(Preparation(minors=(0,)))
    (node.directories[1] / "copy.json").write_bytes(node.file.read_bytes())
    with pytest.raises(TerminalError, match="unresolvable"):
        resolve([device_name("7")], node.directories)


def test_the_last_directory_counts(node: Node) -> None:
    node.write(Preparation(minors=(0,)))
    node.directories[0].mkdir()
    (node.directories[0] / "other.json").write_bytes(node.file.read_bytes().replace(b"nvidia0", b"nvidia1"))
    paths = {each.container_path for each in resolve([device_name("7")], node.directories).devices}
    assert "/dev/nvidia0" in paths


def test_a_file_that_is_written_anew_says_what_it_says_now(node: Node) -> None:
    node.write(Preparation(minors=(0,)))
    before = cdi.read(node.file)
    os.utime(node.file, ns=(1, 1))
    assert cdi.read(node.file) == before
    node.write(Preparation(minors=(1,)))
    os.utime(node.file, ns=(1, 1))
    assert cdi.read(node.file) != before, "another file of the same name and time"
    node.file.write_bytes(msgspec.json.encode(before))
    assert cdi.read(node.file) == before
    node.file.unlink()
    with pytest.raises(FileNotFoundError):
        cdi.read(node.file)


def test_an_unknown_field_makes_no_specification(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**NVIDIA, "hidden": True}))
    with pytest.raises(CorruptData, match="hidden"):
        cdi.read(path)


# ---- without CDI: names under /dev that are filled in


def test_control_devices_lead_nowhere_without_a_card(tmp_path: Path) -> None:
    node = Node(tmp_path)
    links = node.devices.links((), (0, 1))
    assert set(links) == {"nvidia0", "nvidia1", *NVIDIA_NAMES.control}
    assert set(links.values()) == {node.devices.nowhere()}
    granted = node.devices.links((1,), (0, 1))
    assert granted["nvidia1"] == node.root / "dev/nvidia1"
    assert granted["nvidiactl"] == node.root / "dev/nvidiactl"
    assert granted["nvidia0"] == granted["nvidia-modeset"] == node.devices.nowhere(), "not granted, and not there"


def test_the_links_of_every_slot_lead_where_its_own_card_is(tmp_path: Path) -> None:
    node = Node(tmp_path)
    slots = {"a": (0,), "b": (1,), "c": (), "d": (1,)}
    for slot, granted in slots.items():
        node.devices.link(tmp_path / slot, granted, (0, 1))
        assert leads(tmp_path / slot) == node.devices.links(granted, (0, 1))
    assert (tmp_path / "b").lstat().st_ino == (tmp_path / "d").lstat().st_ino, "names of one link"
    assert len({(tmp_path / slot).resolve() for slot in slots}) == 3


def test_links_that_somebody_changed_are_made_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.devices.link(tmp_path / "a", (0,), (0, 1))
    changed = (tmp_path / "a").resolve() / "nvidia1"
    changed.unlink()
    changed.symlink_to(node.root / "dev/nvidia1")
    DeviceFiles(node.root / "dev", node.root / "state").link(tmp_path / "b", (0,), (0, 1))
    assert leads(tmp_path / "b") == node.devices.links((0,), (0, 1))


def test_links_that_no_slot_needs_are_removed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    folder = node.root / "state/links"
    node.devices.discard_unused(())
    for slot, granted in (("a", (0,)), ("b", (1,))):
        node.devices.link(tmp_path / slot, granted, (0, 1))
    (folder / "nvidia0").symlink_to("as an earlier version made them")
    (tmp_path / "earlier").mkdir()
    DeviceFiles(node.root / "dev", node.root / "state").discard_unused(tmp_path / slot for slot in ("a", "earlier"))
    kept = (tmp_path / "a").resolve().name
    assert sorted(each.name for each in folder.iterdir()) == [kept, f"{kept}.link"]
    assert leads(tmp_path / "a") == node.devices.links((0,), (0, 1))


def leads(slot: Path) -> dict[str, Path]:
    return {each.name: each.readlink() for each in slot.iterdir()}


# ---- the choice


@pytest.mark.parametrize(
    ("mode", "kubelet", "runtime", "expected"),
    [
        ("auto", "v1.36.2", "containerd://2.1.4", "CDI: kubelet v1.36.2, containerd 2.1.4"),
        ("auto", "v1.31.0-eks-1", "cri-o://1.31.3", "CDI: kubelet v1.31.0-eks-1, cri-o 1.31.3"),
        ("auto", "v1.30.9", "containerd://2.1.4", "paths: kubelet v1.30.9 is older than 1.31"),
        ("auto", "v1.36.2", "containerd://1.7.27", "paths: containerd 1.7.27 is older than 2.0"),
        ("auto", "v1.36.2", "docker://28.0", "paths: it is not known whether docker supports CDI"),
        ("always", "v1.31.0", "containerd://1.7.27", "CDI: --cdi always"),
        ("never", "v1.36.2", "containerd://2.1.4", "paths: --cdi never"),
    ],
)
def test_what_a_node_can_decides(mode: Mode, kubelet: str, runtime: str, expected: str) -> None:
    node = NodeSystemInfo(kubelet_version=kubelet, container_runtime_version=runtime)
    assert str(choose(mode, node)).startswith(expected)


async def test_what_the_administrator_chose_waits_for_no_api_server() -> None:
    injection = Injection("always")
    async with asyncio.timeout(5):
        await injection.known()
    assert injection.cdi


def test_nothing_is_chosen_before_kubelet_has_said_its_version() -> None:
    injection = Injection("auto")
    with pytest.raises(Unavailable, match="version"):
        injection.learn(NodeSystemInfo())
    assert not injection.cdi
    injection.learn(NodeSystemInfo(kubelet_version="v1.36.0", container_runtime_version="containerd://2.0.0"))
    assert injection.cdi
