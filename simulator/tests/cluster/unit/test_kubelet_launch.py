"""What a container is started with: paths, libraries and devices, with and without private mounts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from egpu_base import compilers
from egpu_base.errors import NotSupported
from egpu_base.kubelet.deviceplugin import ContainerDevices, DeviceNode, Mount
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.environment import Sources
from egpu_sim.cluster.kubelet.launch import run_spec
from egpu_sim.cluster.kubelet.objects import Pod
from egpu_sim.cluster.kubelet.runtime import Bind, RunSpec
from egpu_sim.cluster.kubelet.volumes import mounts
from egpu_sim.machines.machine import PRELOADED
from support.simulated_gpu import machine


def launch(
    tmp_path: Path,
    *,
    private_mounts: bool,
    edits: ContainerDevices | None = None,
    slot: bool = True,
    driver_dir: Path | None = None,
    **spec: object,
) -> RunSpec:
    """`slot`: the container has one. `driver_dir`: of the node's simulated machine, if its cards are of one."""
    answers = [slot_answer(tmp_path)] if slot else []
    pod = msgspec.convert(
        {
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "main", "command": ["run", "$(FROM_PLUGIN)"]}], **spec},
        },
        Pod,
    )
    config = KubeletConfig(node="n", kubeconfig=Path("k"), kubelet_dir=tmp_path / "kubelet", driver_dir=driver_dir)
    return run_spec(
        config,
        pod,
        pod.containers[0],
        directory=tmp_path / "run",
        number=2,
        answers=answers,
        edits=edits or ContainerDevices(),
        sources=Sources(),
        volumes=mounts(config, pod, pod.containers[0], Sources()),
        private_mounts=private_mounts,
    )


def slot_answer(tmp_path: Path) -> ContainerDevices:
    slot = tmp_path / "slot"
    (slot / "dev").mkdir(parents=True)
    (tmp_path / "real0").write_text("card")
    (slot / "dev/nvidia0").symlink_to(tmp_path / "real0")
    (slot / "ld.so.preload").write_text("/opt/egpu/lib.so\n")
    return ContainerDevices(
        envs={"FROM_PLUGIN": "1"},
        mounts=(Mount("/opt/egpu", str(slot)), Mount("/etc/ld.so.preload", str(slot / "ld.so.preload"))),
        devices=(DeviceNode("/dev/nvidia0", str(slot / "dev/nvidia0")),),
    )


def test_with_private_mounts(tmp_path: Path) -> None:
    spec = launch(tmp_path, private_mounts=True)
    assert spec.argv == ["run", "1"]
    assert spec.preload == ("/opt/egpu/lib.so",)
    assert Bind(str(tmp_path / "real0"), "/dev/nvidia0") in spec.binds, "the link is resolved when the container starts"
    assert Bind(str(tmp_path / "slot"), "/opt/egpu", read_only=True) in spec.binds
    assert not any(bind.target == "/etc/ld.so.preload" for bind in spec.binds), "it is merged, not replaced"
    assert spec.log == tmp_path / "kubelet/pods/ns_p_u/main/2.log"
    assert "LD_PRELOAD" not in spec.env


def test_without_private_mounts_the_environment_has_to_do(tmp_path: Path) -> None:
    spec = launch(tmp_path, private_mounts=False)
    assert spec.env["LD_PRELOAD"] == f"{tmp_path}/slot/lib.so"


def test_what_cdi_devices_mean_is_applied_last(tmp_path: Path) -> None:
    container = [{"name": "main", "command": ["run"], "env": [{"name": "WHO", "value": "the pod"}]}]
    edits = ContainerDevices(envs={"WHO": "CDI"}, mounts=(Mount("/opt/cdi", "/tmp"),))
    spec = launch(tmp_path, private_mounts=True, edits=edits, containers=container)
    assert spec.env["WHO"] == "CDI"
    assert Bind("/tmp", "/opt/cdi", read_only=True) in spec.binds


PTX = {"TRITON_PTXAS_PATH", "NUMBA_CUDA_MEMORY_MANAGER", "XLA_FLAGS", "PYTHONPATH", "EGPU_GIVE_PTX"}


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Path]:
    with machine(tmp_path / "machine", "T4") as made:
        yield made.driver_dir


@pytest.mark.parametrize("private_mounts", [True, False])
def test_a_slice_of_a_simulated_card_is_as_one_of_egpu_run(
    tmp_path: Path, simulated: Path, *, private_mounts: bool
) -> None:
    """Compilers are led to PTX, beside what the pod says, and no library that a program brings comes before ours."""
    own = [{"name": "PYTHONPATH", "value": "/own"}, {"name": "XLA_FLAGS", "value": "--xla_gpu_autotune_level=4"}]
    container = [{"name": "main", "command": ["run"], "env": own}]
    spec = launch(tmp_path, private_mounts=private_mounts, driver_dir=simulated, containers=container)
    assert spec.env.keys() >= PTX
    assert spec.env["PYTHONPATH"] == f"{compilers.PLUGINS}:/own"
    assert spec.env["XLA_FLAGS"] == "--xla_gpu_autotune_level=4"
    assert len(path := spec.env["PATH"].split(":")) == len(set(path))
    first, *preloaded = spec.preload if private_mounts else spec.env["LD_PRELOAD"].split(":")
    assert first.endswith("/lib.so"), "what limits the slice"
    driver = "/opt/egpu-driver" if private_mounts else str(tmp_path / "run/driver")
    assert preloaded == [f"{driver}/{name}" for name in PRELOADED]
    assert Bind(str(tmp_path / "run/driver"), "/opt/egpu-driver", read_only=True) in spec.binds


def test_a_slice_that_another_process_serves_is_led_to_ptx_too(tmp_path: Path, simulated: Path) -> None:
    edits = ContainerDevices(envs={"NVIDIA_VISIBLE_DEVICES": "void"})
    spec = launch(tmp_path, private_mounts=True, driver_dir=simulated, edits=edits)
    assert spec.env.keys() >= PTX
    assert spec.preload == ("/opt/egpu/lib.so",)


@pytest.mark.parametrize("slot", [True, False])
def test_without_simulated_cards_or_a_slice_nothing_is_said_to_compilers(
    tmp_path: Path, simulated: Path, *, slot: bool
) -> None:
    spec = launch(tmp_path, private_mounts=True, slot=slot, driver_dir=None if slot else simulated)
    assert not spec.env.keys() & PTX


def test_a_volume_that_is_not_supported_says_so(tmp_path: Path) -> None:
    unknown = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    mounted = [{"name": "main", "command": ["x"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
    with pytest.raises(NotSupported, match=r"'v'.*only emptyDir, hostPath, configMap"):
        launch(tmp_path, private_mounts=True, volumes=unknown, containers=mounted)
