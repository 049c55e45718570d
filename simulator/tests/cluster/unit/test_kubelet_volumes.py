"""Volumes with files: of ConfigMaps, Secrets and the pod itself."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from egpu_base.errors import InvalidInput
from egpu_sim.cluster.kubelet.config import KubeletConfig
from egpu_sim.cluster.kubelet.environment import Sources
from egpu_sim.cluster.kubelet.objects import EnvVar, Pod
from egpu_sim.cluster.kubelet.runtime import Bind
from egpu_sim.cluster.kubelet.volumes import mounts, named_by_volumes

SOURCES = Sources(config_maps={"c": {"a.conf": b"A", "b.conf": b"B"}}, secrets={"s": {"key": b"\x00\xff"}})


def a_pod(volume: dict[str, Any], **mount: Any) -> Pod:
    container = {
        "name": "main",
        "volumeMounts": [{"name": "v", "mountPath": "/v", **mount}],
        "resources": {"limits": {"memory": "1Gi", "cpu": "1500m"}},
    }
    meta = {"name": "p", "namespace": "ns", "uid": "u", "labels": {"b": "2", "a": 'say "1"'}}
    spec = {"containers": [container], "volumes": [{"name": "v", **volume}]}
    return msgspec.convert({"kind": "Pod", "metadata": meta, "spec": spec}, Pod)


def mounted(root: Path, pod: Pod, sources: Sources = SOURCES, env: Sequence[dict[str, Any]] = ()) -> Bind:
    config = KubeletConfig(node="n", kubeconfig=Path("k"), kubelet_dir=root)
    variables = msgspec.convert(env, list[EnvVar])
    (bind,) = mounts(config, pod, msgspec.structs.replace(pod.containers[0], env=variables), sources)
    return bind


def files(root: Path, volume: dict[str, Any]) -> dict[str, tuple[bytes, int]]:
    """The files of a mounted volume, and their modes."""
    bind = mounted(root, a_pod(volume))
    assert (bind.target, bind.read_only) == ("/v", True)
    found = [path for path in Path(bind.source).rglob("*") if path.is_file()]
    return {str(one.relative_to(bind.source)): (one.read_bytes(), one.stat().st_mode & 0o777) for one in found}


def test_a_config_map_is_a_file_for_each_key(tmp_path: Path) -> None:
    assert files(tmp_path, {"configMap": {"name": "c"}}) == {"a.conf": (b"A", 0o644), "b.conf": (b"B", 0o644)}


def test_a_secret_is_bytes_with_the_mode_that_is_asked_for(tmp_path: Path) -> None:
    assert files(tmp_path, {"secret": {"secretName": "s", "defaultMode": 0o400}}) == {"key": (b"\x00\xff", 0o400)}


def test_items_choose_keys_paths_and_modes(tmp_path: Path) -> None:
    items = [{"key": "b.conf", "path": "deep/er/x", "mode": 0o600}]
    assert files(tmp_path, {"configMap": {"name": "c", "items": items}}) == {"deep/er/x": (b"B", 0o600)}


def test_what_is_optional_may_be_absent(tmp_path: Path) -> None:
    assert files(tmp_path, {"configMap": {"name": "none", "optional": True}}) == {}
    items = [{"key": "none", "path": "x"}]
    assert files(tmp_path, {"secret": {"secretName": "s", "items": items, "optional": True}}) == {}


def test_the_pod_says_who_it_is(tmp_path: Path) -> None:
    items = [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpus", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
        {"path": "mib", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}},
    ]
    found = files(tmp_path, {"downwardAPI": {"items": items}})
    assert {name: content for name, (content, _) in found.items()} == {
        "name": b"p", "labels": b'a="say \\"1\\""\nb="2"', "cpus": b"2", "mib": b"1024",
    }  # fmt: skip


def test_projected_sources_share_a_directory(tmp_path: Path) -> None:
    sources = [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}, {"downwardAPI": {"items": []}}]
    volume = {"projected": {"sources": sources, "defaultMode": 0o440}}
    assert files(tmp_path, volume) == {"a.conf": (b"A", 0o440), "b.conf": (b"B", 0o440), "key": (b"\x00\xff", 0o440)}
    assert named_by_volumes(a_pod(volume)) == ({"c"}, {"s"})


def test_a_service_accounts_token_is_not_mounted(tmp_path: Path) -> None:
    sources = [{"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]
    pod = a_pod({"projected": {"sources": sources}})
    config = KubeletConfig(node="n", kubeconfig=Path("k"), kubelet_dir=tmp_path)
    assert mounts(config, pod, pod.containers[0], SOURCES) == []
    assert named_by_volumes(pod) == (set(), set())


def test_what_a_pod_mounts_beside_a_token_is_mounted_without_it(tmp_path: Path) -> None:
    token, authority = {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}
    own = [{"configMap": {"name": "c"}}, {"secret": {"name": "s"}}]
    volume = {"projected": {"sources": [token, authority, *own]}}
    assert files(tmp_path, volume).keys() == {"a.conf", "b.conf", "key"}
    assert named_by_volumes(a_pod(volume)) == ({"c"}, {"s"})


def test_one_file_of_a_volume(tmp_path: Path) -> None:
    bind = mounted(tmp_path, a_pod({"configMap": {"name": "c"}}, subPath="a.conf"))
    assert Path(bind.source).read_bytes() == b"A"


def test_the_next_start_has_what_the_object_says_then(tmp_path: Path) -> None:
    pod = a_pod({"configMap": {"name": "c"}})
    mounted(tmp_path, pod)
    bind = mounted(tmp_path, pod, Sources(config_maps={"c": {"a.conf": b"new"}}))
    assert (Path(bind.source) / "a.conf").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("volume", "words"),
    [
        ({"configMap": {"name": "none"}}, "ConfigMap 'none' was not found"),
        ({"secret": {"secretName": "none"}}, "Secret 'none' was not found"),
        ({"configMap": {"name": "c", "items": [{"key": "none", "path": "x"}]}}, "has no key 'none'"),
        ({"configMap": {"name": "c", "items": [{"key": "a.conf", "path": "../x"}]}}, "not a path inside the volume"),
        ({"configMap": {"name": "c", "items": [{"key": "a.conf", "path": "/x"}]}}, "not a path inside the volume"),
        ({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "spec.none"}}]}}, "is not one of"),
        (
            {"downwardAPI": {"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}},
            "there is no container ''",
        ),
    ],
)
def test_what_cannot_be_resolved_says_why(tmp_path: Path, volume: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        mounted(tmp_path, a_pod(volume))


def test_a_path_out_of_a_volume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not a path inside the volume"):
        mounted(tmp_path, a_pod({"emptyDir": {}}, subPath="../../x"))


def test_a_link_in_a_volume_leads_no_sub_path_out_of_it(tmp_path: Path) -> None:
    """A container of the pod may have made it, for another one that starts later."""
    whole = Path(mounted(tmp_path, a_pod({"emptyDir": {}})).source)
    outside = tmp_path / "outside"
    outside.mkdir()
    (whole / "out").symlink_to(outside)
    for sub_path in ("out", "out/new"):
        with pytest.raises(InvalidInput, match="leads out of the volume"):
            mounted(tmp_path, a_pod({"emptyDir": {}}, subPath=sub_path))
    assert list(outside.iterdir()) == []
    (whole / "in").symlink_to("data")
    assert mounted(tmp_path, a_pod({"emptyDir": {}}, subPath="in")).source == str(whole / "data")


NAMED = [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}, {"name": "RUN", "value": "7"}]


@pytest.mark.parametrize(
    ("expression", "part"), [("$(POD)/$(RUN)", "p/7"), ("logs", "logs"), ("a$$(RUN)", "a$(RUN)"), ("$(HOSTNAME)", "p")]
)
def test_a_part_of_a_volume_is_named_by_variables(tmp_path: Path, expression: str, part: str) -> None:
    bind = mounted(tmp_path, a_pod({"emptyDir": {}}, subPathExpr=expression), env=NAMED)
    assert Path(bind.source).is_dir()
    assert bind.source.endswith(f"/v/{part}")


@pytest.mark.parametrize(
    ("expression", "words"),
    [("$(NONE)", "the container has no variable 'NONE'"), ("$(UP)/x", "not a path inside the volume")],
)
def test_a_part_that_variables_do_not_name_is_refused(tmp_path: Path, expression: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        mounted(tmp_path, a_pod({"emptyDir": {}}, subPathExpr=expression), env=[{"name": "UP", "value": ".."}])


KINDS = {"": "dir", "Directory": "dir", "DirectoryOrCreate": "dir", "File": "file", "FileOrCreate": "file"}


@pytest.mark.parametrize("kind", ["", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice",
                                  "BlockDevice"])  # fmt: skip
@pytest.mark.parametrize("there", ["dir", "file", "socket", "none"])
def test_a_path_of_the_node_is_of_its_type(tmp_path: Path, kind: str, there: str) -> None:
    path = tmp_path / "x"
    if there == "dir":
        path.mkdir()
    elif there == "file":
        path.write_text("kept")
    elif there == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    fits = there != "none" and (not kind or KINDS.get(kind, kind.lower()) == there)
    volume = a_pod({"hostPath": {"path": str(path), "type": kind}})
    if fits or (there == "none" and kind.endswith("OrCreate")):
        assert mounted(tmp_path, volume).source == str(path)
        assert not kind or (path.is_file() if KINDS.get(kind) == "file" else path.is_dir() or path.is_socket())
        assert there != "file" or path.read_text() == "kept"
    else:
        with pytest.raises(InvalidInput, match=f"hostPath {path} (is not of the type {kind}|does not exist)"):
            mounted(tmp_path, volume)


def test_a_file_is_not_made_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        mounted(tmp_path, a_pod({"hostPath": {"path": str(tmp_path / "none" / "x"), "type": "FileOrCreate"}}))
