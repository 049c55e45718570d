"""What a container is started with: paths, libraries and devices, with and without private mounts."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from egpu.adapters.kubelet.deviceplugin import ContainerDevices, DeviceNode, Mount
from egpu.embedded.kubelet.config import KubeletConfig
from egpu.embedded.kubelet.environment import Sources
from egpu.embedded.kubelet.launch import run_spec, volumes
from egpu.embedded.kubelet.objects import Pod
from egpu.embedded.kubelet.runtime import Bind, RunSpec
from egpu.errors import NotSupported


def launch(tmp_path: Path, *, private_mounts: bool, edits: ContainerDevices | None = None, **spec: object) -> RunSpec:
    slot = tmp_path / "slot"
    (slot / "dev").mkdir(parents=True)
    (tmp_path / "real0").write_text("card")
    (slot / "dev/nvidia0").symlink_to(tmp_path / "real0")
    (slot / "ld.so.preload").write_text("/opt/egpu/lib.so\n")
    answer = ContainerDevices(
        envs={"FROM_PLUGIN": "1"},
        mounts=(Mount("/opt/egpu", str(slot)), Mount("/etc/ld.so.preload", str(slot / "ld.so.preload"))),
        devices=(DeviceNode("/dev/nvidia0", str(slot / "dev/nvidia0")),),
    )
    pod = msgspec.convert(
        {
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "main", "command": ["run", "$(FROM_PLUGIN)"]}], **spec},
        },
        Pod,
    )
    config = KubeletConfig(node="n", kubeconfig=Path("k"), kubelet_dir=tmp_path / "kubelet")
    return run_spec(
        config,
        pod,
        pod.containers[0],
        directory=tmp_path / "run",
        number=2,
        answers=[answer],
        edits=edits or ContainerDevices(),
        sources=Sources(),
        volumes=volumes(config, pod, pod.containers[0]),
        private_mounts=private_mounts,
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


def test_a_volume_that_is_not_supported_says_so(tmp_path: Path) -> None:
    unknown = [{"name": "v", "configMap": {"name": "c"}}]
    mounts = [{"name": "main", "command": ["x"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]
    with pytest.raises(NotSupported, match=r"'v'.*only emptyDir and hostPath"):
        launch(tmp_path, private_mounts=True, volumes=unknown, containers=mounts)
