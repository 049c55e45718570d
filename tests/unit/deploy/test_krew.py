"""The kubectl plugin: krew's rules for its manifest, its archive, its launcher, and its completion."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import krew
import pytest
import yaml

EPOCH = 1_700_000_000
PLACEHOLDER = "0" * 64


def plugin(folder: Path, minor: str = krew.python_minor()) -> Path:
    """The files of an archive, with a program that prints how it was called."""
    package = folder / "site" / "egpu" / "cli"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("import sys\ndef main():\n    print(sys.argv)\n")
    (package / "completion.py").write_text("def for_kubectl():\n    print('completes')\n")
    krew.add_programs(folder, minor)
    return folder


def check(manifest: Any, name: str) -> None:
    """Krew's own rules (krew.sigs.k8s.io, "Writing Krew plugin manifests"). Raises AssertionError."""
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin"
    assert manifest["metadata"] == {"name": name}
    assert re.fullmatch(r"[\w-]+", name)
    spec = manifest["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+(-[\w.]+)?", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 50
    assert "\n" not in spec["shortDescription"]
    assert spec["description"]
    assert spec["homepage"].startswith("https://")
    assert spec["platforms"]
    for one in spec["platforms"]:
        assert set(one) <= {"selector", "uri", "sha256", "bin", "files"}
        assert set(one["selector"]["matchLabels"]) <= {"os", "arch"}
        assert re.fullmatch(r"[a-f0-9]{64}", one["sha256"])
        assert one["uri"].startswith("https://")
        assert one["uri"].endswith((".tar.gz", ".zip"))
        assert one["bin"]


def test_the_manifest_follows_krews_rules() -> None:
    found = yaml.safe_load(krew.TEMPLATE.read_text())
    check(found, krew.TEMPLATE.stem)
    version = tomllib.loads((krew.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert found["spec"]["version"] == f"v{version}"


def test_the_written_manifest_names_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "kubectl-egpu-0.2.0-linux-arm64.tar.gz"
    krew.pack(plugin(tmp_path / "plugin"), archive, EPOCH)
    text = krew.manifest(
        krew.TEMPLATE.read_text(), archive, version="0.2.0", architecture="arm64", address="https://a.example/r"
    )
    check(yaml.safe_load(text), "egpu")
    spec = yaml.safe_load(text)["spec"]
    (one,) = spec["platforms"]
    assert spec["version"] == "v0.2.0"
    assert one["uri"] == f"https://a.example/r/{archive.name}"
    assert one["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest() != PLACEHOLDER
    assert one["selector"]["matchLabels"] == {"os": "linux", "arch": "arm64"}
    assert f"python{krew.python_minor()}" in spec["caveats"]
    with tarfile.open(archive) as file:
        assert one["bin"] in file.getnames()


def test_the_archive_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        krew.pack(plugin(tmp_path / name), tmp_path / f"{name}.tar.gz", EPOCH)
        os.utime(tmp_path / name / "LICENSE", (1, 1))
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


@pytest.mark.parametrize(
    ("program", "said"),
    [("kubectl-egpu", "['kubectl-egpu', 'get', 'a b']"), ("kubectl_complete-egpu", "completes")],
)
def test_the_unpacked_plugin_runs_through_krews_link(program: str, said: str, tmp_path: Path) -> None:
    krew.pack(plugin(tmp_path / "plugin"), tmp_path / "plugin.tar.gz", EPOCH)
    with tarfile.open(tmp_path / "plugin.tar.gz") as file:
        file.extractall(tmp_path / "store", filter="data")
    link = tmp_path / program
    link.symlink_to(tmp_path / "store" / program)
    path = f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin"  # not that of .venv, which has the real egpu
    done = subprocess.run([link, "get", "a b"], env={"PATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


def test_without_its_python_the_plugin_names_it_and_another_way(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "plugin", "3.99")
    done = subprocess.run(
        [folder / "kubectl-egpu"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs python3.99" in done.stderr
    assert "pipx install elastic-gpu" in done.stderr


def test_each_program_of_the_archive_is_one_of_the_wheel() -> None:
    scripts = tomllib.loads((krew.ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert krew.PROGRAMS.items() <= scripts.items()
