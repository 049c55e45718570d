"""The image without a container engine: what it needs, its bill of materials, and that no half archive is left."""

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import image
import pytest

SBOM = image.ROOT / "deploy" / "image" / "sbom.py"
FILES = "libssl3_3.0.17-1~deb12u2_amd64.deb libstdc++6_12.2.0-14+deb12u1_amd64.deb base_1%3a2.3_all.deb lock partial"


def sbom() -> ModuleType:
    """The script of the image, which is in no package."""
    loader = SourceFileLoader("image_sbom", str(SBOM))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def site(folder: Path, **packages: str) -> Path:
    """A folder of installed Python packages."""
    for name, version in packages.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\nLicense-Expression: MIT\n"
        (info / "METADATA").write_text(text)
    return folder


def printed(files: Path, packages: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SBOM, files, packages], capture_output=True, text=True, check=False)


def test_the_bill_has_the_packages_of_both_kinds_in_the_image(tmp_path: Path) -> None:
    (tmp_path / "files").write_text(FILES.replace(" ", "\n"))
    packages = site(tmp_path / "site", elastic_gpu="0.1.0", numpy="2.4.6")
    done = printed(tmp_path / "files", packages)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["version"] == "0.1.0"
    found = {one["purl"]: one for one in bill["components"]}
    assert list(found) == sorted(found)
    assert set(found) == {
        "pkg:deb/debian/libssl3@3.0.17-1~deb12u2?arch=amd64&distro=bookworm",
        "pkg:deb/debian/libstdc++6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=bookworm",
        "pkg:deb/debian/base@1%3A2.3?arch=all&distro=bookworm",
        "pkg:pypi/elastic-gpu@0.1.0",
        "pkg:pypi/numpy@2.4.6",
    }
    assert found["pkg:pypi/numpy@2.4.6"]["licenses"] == [{"expression": "MIT"}]
    assert printed(tmp_path / "files", packages).stdout == done.stdout, "the same contents give the same bytes"


def test_the_serial_number_follows_the_contents(tmp_path: Path) -> None:
    bills: list[dict[str, Any]] = [
        json.loads(sbom().bill(sbom().python(site(tmp_path / version, elastic_gpu=version)), "0.1.0"))
        for version in ("0.1.0", "0.1.1")
    ]
    assert bills[0]["serialNumber"] != bills[1]["serialNumber"]


def test_an_empty_list_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("lock\n")
    done = printed(tmp_path / "files", site(tmp_path / "site", elastic_gpu="0.1.0"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "0 packages" in done.stderr


def test_what_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(image.shutil, "which", {"python3.11": "x", "gcc": "x", "unshare": "x"}.get)
    monkeypatch.setattr(image.os, "geteuid", lambda: 0)
    assert image.missing() == ["mmdebstrap"]
    assert image.namespace(["build"]) == ["build"]
    monkeypatch.setattr(image.os, "geteuid", lambda: 65534)
    monkeypatch.setattr(image, "RANGES", (tmp_path / "subuid",))
    (tmp_path / "subuid").write_text("nobody2:100000:65536\n")
    lacking = image.missing()
    assert lacking[:3] == ["mmdebstrap", "newuidmap (or root)", "newgidmap (or root)"]
    assert lacking[3].startswith("a range of ")
    (tmp_path / "subuid").write_text(f"{image.pwd.getpwuid(65534).pw_name}:100000:65536\n")
    assert len(image.missing()) == 3
    assert image.namespace(["build"])[0] == "unshare"


def test_a_build_that_fails_leaves_no_archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(command: list[Any], **_: Any) -> None:
        (Path(command[1]) / "opt").mkdir()

    monkeypatch.setattr(image.subprocess, "run", run)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with pytest.raises(FileNotFoundError, match="sbom"):
        image.build(tmp_path / "image.tar", tmp_path / "bill.json", "elastic-gpu:0.1.0")
    assert not (tmp_path / "image.tar").exists()
    assert not (tmp_path / ".image.tar").exists()
