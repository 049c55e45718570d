"""`--library-path` of the components of a node whose executors call NVIDIA's libraries."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from egpu.apps.shim import ShimConfig
from egpu.apps.shim.app import NodeShim
from egpu.cli import components
from egpu.cli.app import app


@pytest.mark.parametrize("command", ["agent --node n", "shim"])
def test_agent_and_shim_take_folders(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(components, "run_component", lambda _name, _run, config, _log: given.append(config))
    folders = ["--library-path", "/opt/one", "--library-path", "/opt/two"]
    done = CliRunner().invoke(app, [*command.split(), *folders])
    assert [config.library_path for config in given] == [(Path("/opt/one"), Path("/opt/two"))], done.output


def test_a_shim_gives_them_to_its_executors(tmp_path: Path) -> None:
    for folder in ("named", "driver", "state", "kubelet"):
        (tmp_path / folder).mkdir(mode=0o700)
    (tmp_path / "driver/machine").touch()
    config = ShimConfig(
        kubelet_dir=tmp_path / "kubelet", state_dir=tmp_path / "state", driver_dir=tmp_path / "driver",
        library_path=(tmp_path / "named",),
    )  # fmt: skip
    assert NodeShim(config).libraries == (tmp_path / "named",)
