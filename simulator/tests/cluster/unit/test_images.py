"""What containers of an image run."""

from pathlib import Path
from typing import Any

import pytest

from egpu_base.errors import InvalidInput, NotSupported
from egpu_sim import native
from egpu_sim.cluster.kubelet import images
from egpu_sim.cluster.kubelet.objects import Container


def box(image: str, **more: Any) -> Container:
    return Container(name="main", image=image, **more)


def test_a_command_is_run_whatever_the_image() -> None:
    assert images.argv(box("nobody/knows", command=["a"], args=["b"])) == ["a", "b"]


def test_args_stand_for_those_of_the_table() -> None:
    assert images.argv(box("registry.k8s.io/pause:3.9")) == ["sleep", "infinity"]
    assert images.argv(box("registry.k8s.io/pause:3.9", args=["5"])) == ["sleep", "5"]


def test_args_are_another_command_for_an_image_without_an_entry_point() -> None:
    for image in ("nvidia/cuda:12.4.0-base", "nvcr.io/nvidia/cuda:13", "busybox", "ubuntu:24.04", "python:3.12"):
        assert images.argv(box(image, args=["nvidia-smi", "-L"])) == ["nvidia-smi", "-L"]
    assert images.argv(box("nvidia/cuda:13")) == [str(native.path("samples/egpu-sample-vectoradd"))]
    assert images.argv(box("elasticgpu.io/sample-spin:1", args=["--help"]))[1:] == ["--help"]


def test_an_image_that_nobody_knows_is_refused_with_what_to_do() -> None:
    with pytest.raises(NotSupported, match="egpu up --images FILE"):
        images.argv(box("nobody/knows"))


def test_the_user_s_table_comes_first_and_is_read_anew(tmp_path: Path) -> None:
    own = tmp_path / "images.yaml"
    own.write_text("- {image: 'mine/*', run: [python3, /srv/train.py]}\n- {image: '*/pause:*', run: [/bin/true]}\n")
    assert images.argv(box("mine/trainer:2"), own) == ["python3", "/srv/train.py"]
    assert images.argv(box("registry.k8s.io/pause:3.9"), own) == ["/bin/true"]
    assert images.argv(box("elasticgpu.io/sample-spin:1"), own) == [str(native.path("samples/egpu-sample-spin"))]
    own.write_text("- {image: 'mine/*', run: [other]}\n")
    assert images.argv(box("mine/trainer:2"), own) == ["other"]


@pytest.mark.parametrize(
    "text",
    [
        "- {image: a}",
        "- {image: a, run: []}",
        "image: a",
        "- {image: a, runs: [b]}",
        "[",
        "- {image: a, cmd: []}",
        "- {image: a, run: [b], cmd: [c]}",
    ],
)
def test_a_table_that_cannot_be_read_is_said_with_its_form(tmp_path: Path, text: str) -> None:
    own = tmp_path / "images.yaml"
    own.write_text(text)
    with pytest.raises(InvalidInput, match="image: PATTERN, run"):
        images.read(own)
    with pytest.raises(InvalidInput):
        images.read(tmp_path / "none")
